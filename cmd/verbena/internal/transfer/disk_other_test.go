//go:build !linux

package transfer

import "testing"

func smallDisk(t *testing.T, _ int) string {
	t.Skip("small disks are made on Linux only")
	return ""
}

func limitFiles(t *testing.T, _, _ int) {
	t.Skip("the limits of another process are set on Linux only")
}

func becomeUser(int) { panic("tests have processes of other users on Linux only") }
