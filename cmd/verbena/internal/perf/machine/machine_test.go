package machine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseCPU(t *testing.T) {
	model, hypervisor := parseCPU("processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu hypervisor sse\n\nmodel name\t: other\n")
	assert.Equal(t, "AMD EPYC 9R14", model)
	assert.True(t, hypervisor)
	model, hypervisor = parseCPU("model name : A\nflags : fpu\n")
	assert.Equal(t, "A", model)
	assert.False(t, hypervisor)
	model, _ = parseCPU("")
	assert.Empty(t, model)
}

func TestEmulated(t *testing.T) {
	assert.True(t, emulated("QEMU TCG CPU version 2.5+", "QEMU", ""))
	assert.True(t, emulated("QEMU Virtual CPU version 2.5+", "QEMU", ""))
	assert.False(t, emulated("Intel(R) Xeon(R) Processor", "QEMU", ""))
}

func TestDescribe(t *testing.T) {
	m := Describe()
	assert.Equal(t, runtime.GOOS, m.OS)
	assert.Positive(t, m.CPUs)
	assert.NotEmpty(t, m.Go)
	assert.Equal(t, m.ID, Describe().ID)
}
