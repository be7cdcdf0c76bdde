package processor

import (
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTime(t *testing.T) {
	before := Time()
	for x := 0; Time() == before && runtime.GOOS != "windows"; x++ {
	}
}
