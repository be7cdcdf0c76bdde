//go:build !linux

package transfer

import "testing"

func smallDisk(t *testing.T, _ int) string {
	t.Skip("small disks are made on Linux only")
	return ""
}
