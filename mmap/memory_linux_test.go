package mmap

import (
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// resident is how many pages of memory are there.
func resident(t *testing.T, mem []byte) (pages int) {
	t.Helper()
	vector := make([]byte, (len(mem)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&vector[0])))
	require.Zero(t, errno)
	for _, page := range vector {
		pages += int(page & 1)
	}
	return pages
}

func TestPrefault(t *testing.T) {
	const size = 64<<12 + 1
	for pages := range HugePages {
		for _, prefault := range []bool{false, true} {
			m, err := New(newDevice("fake0"), Config{Size: size, Pages: pages, Prefault: prefault})
			require.NoError(t, err)
			if there := resident(t, m.Bytes()); prefault {
				assert.Equal(t, (size+os.Getpagesize()-1)/os.Getpagesize(), there)
			} else {
				assert.Zero(t, there)
			}
			require.NoError(t, m.Close())
		}
	}
	mem := make([]byte, 10_000)
	touch(mem)
	assert.Equal(t, make([]byte, 10_000), mem)
}

func TestNear(t *testing.T) {
	dev := newDevice("fake0")
	for _, node := range []int{-1, 0, 1 << 30} {
		dev.node = node
		m, err := New(dev, Config{Size: 10_000, Near: true})
		require.NoError(t, err)
		var policy int32
		_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&policy)), 0, 0, uintptr(m.Addr()), 2, 0) // MPOL_F_ADDR
		if errno == unix.EPERM || errno == unix.ENOSYS {
			t.Skip("the kernel, or the container, has no memory policies:", errno)
		}
		require.Zero(t, errno)
		assert.Equal(t, node == 0, policy == 1, "policy %d for node %d", policy, node) // MPOL_PREFERRED
		require.NoError(t, m.Close())
	}
}

func TestTransparentHugePages(t *testing.T) {
	m, err := New(newDevice("fake0"), Config{Size: hugePage + 1, Pages: TransparentHugePages})
	require.NoError(t, err)
	defer m.Close()
	assert.Zero(t, m.Addr()%hugePage)
	assert.Len(t, m.Bytes(), hugePage+1)
	m.Bytes()[hugePage] = 1
}

func TestPagesRefused(t *testing.T) {
	dev := newDevice("fake0")
	for _, c := range []struct {
		cfg  Config
		want error
		says string
	}{
		{Config{Size: math.MaxInt / 2, Pages: HugePages}, syscall.ENOMEM, "nr_hugepages"}, // more than any machine has reserved
		{Config{Size: 1, Pages: HugePages + 1}, ErrInvalid, "Pages is 3"},
		{Config{Size: 1, Pages: -1}, ErrInvalid, "Pages is -1"},
		{Config{Memory: make([]byte, 1), Pages: TransparentHugePages}, ErrInvalid, "allocated"},
		{Config{Memory: make([]byte, 1), Prefault: true}, ErrInvalid, "allocated"},
		{Config{Memory: make([]byte, 1), Near: true}, ErrInvalid, "allocated"},
	} {
		_, err := New(dev, c.cfg)
		require.ErrorIs(t, err, c.want)
		assert.ErrorContains(t, err, c.says)
	}
	assert.Empty(t, dev.pd.live)
}
