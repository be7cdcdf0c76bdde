package rules

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Both ways to ask for mappings, of which the first needs Linux 6.11, say the same.
func TestAccessibleUpTo(t *testing.T) {
	const pages = 6
	page := uint64(os.Getpagesize())
	mem, err := unix.Mmap(-1, 0, pages*int(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	from := uint64(uintptr(unsafe.Pointer(&mem[0])))
	protect := func(first, protection int) {
		require.NoError(t, unix.Mprotect(mem[first*int(page):(first+1)*int(page)], protection))
	}
	protect(2, unix.PROT_READ)
	protect(4, unix.PROT_NONE)
	for _, c := range []struct {
		from, to uint64 // in pages
		write    bool
		want     uint64
	}{
		{0, 2, true, 2}, {0, 3, true, 2}, {2, 3, true, 2}, {3, 4, true, 4}, {3, 6, true, 4}, {5, 6, true, 6},
		{0, 4, false, 4}, {0, 6, false, 4}, {4, 5, false, 4}, {2, 3, false, 3},
	} {
		maps, err := os.Open("/proc/self/maps")
		require.NoError(t, err)
		listed, err := listedUpTo(maps, from+c.from*page, from+c.to*page, c.write)
		require.NoError(t, err)
		queried, err := queriedUpTo(int(maps.Fd()), from+c.from*page, from+c.to*page, c.write)
		if err == unix.ENOTTY {
			t.Log("no PROCMAP_QUERY: Linux 6.11 has it")
			queried = listed
		} else {
			require.NoError(t, err)
		}
		for _, at := range []uint64{listed, queried} { // what follows may be one mapping with more
			require.Equal(t, c.want, min((at-from)/page, max(c.to, c.want)), "%+v", c)
		}
		require.NoError(t, maps.Close())
	}
	_, err = listedUpTo(strings.NewReader("what is this\n"), from, from+page, true)
	require.Error(t, err)
}
