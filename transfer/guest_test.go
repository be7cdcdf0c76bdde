//go:build linux && cgo && verbs

package transfer

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/verbs"
)

// guestDevice opens rxe0, or a software device at the other end of its cable.
func guestDevice(t *testing.T, rxe bool) (dev verbs.Device) {
	t.Helper()
	var err error
	if rxe {
		dev, err = ibverbs.Driver{}.Open("rxe0")
	} else {
		err = rig.InNamespace("s", func() (err error) {
			dev, err = soft.Open(soft.Config{Interface: "v1"})
			return err
		})
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// Agents on the kernel's rxe move data as those on software devices do, also between the two, and over both at a time.
func TestGuestAgents(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	for _, on := range []struct {
		name      string
		near, far []bool // whether each device is rxe0
	}{
		{"rxe to rxe", []bool{true}, []bool{true}},
		{"rxe to soft", []bool{true}, []bool{false}},
		{"soft to rxe", []bool{false}, []bool{true}},
		{"rxe to both", []bool{true, true}, []bool{false, true}},
	} {
		t.Run(on.name, func(t *testing.T) { guestAgents(t, on.near, on.far) })
	}
}

func guestAgents(t *testing.T, near, far []bool) {
	ctx := testContext(t)
	devices := func(rxe []bool) (all []verbs.Device) {
		for _, rxe := range rxe {
			all = append(all, guestDevice(t, rxe))
		}
		return all
	}
	open := func(listen string, devices []verbs.Device) *Agent {
		c := Config{Devices: devices, Listen: listen, CacheBytes: 1 << 20}
		a, err := Open(c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		return a
	}
	theirs := devices(far)
	a, b := open("", devices(near)), open(":7600", theirs)
	memory := make([]byte, 3<<20)
	_, err := b.Register("blocks", memory, all)
	require.NoError(t, err)

	p, err := a.Dial(ctx, b.Addrs()[0].String())
	require.NoError(t, err)
	blocks, err := p.Segment(ctx, "blocks")
	require.NoError(t, err)
	mine, read := make([]byte, 2<<20), make([]byte, len(memory))
	pattern(mine, 1, 1)
	_, err = a.Register("", read, mmap.LocalReadWrite)
	require.NoError(t, err)

	do := func(b *Batch) *Handle {
		h, err := a.Submit(b)
		require.NoError(t, err)
		require.NoError(t, h.Wait(ctx))
		return h
	}
	var batch Batch
	for len(p.Devices()) < len(near) { // the others connect when there is work
		batch.Read(blocks, 0, read)
		do(&batch)
	}
	batch.Write(blocks, 64, mine) // more than the cache keeps, and in pieces
	for i := range 100 {
		batch.Write(blocks, 64+len(mine)+i*64, mine[i*64:][:64])
	}
	batch.Note(p, 7)
	do(&batch)
	note, err := b.Note(ctx)
	require.NoError(t, err)
	require.Equal(t, uint32(7), note.Value)
	require.Equal(t, mine, memory[64:][:len(mine)])
	require.Equal(t, mine[:6400], memory[64+len(mine):][:6400])

	batch.FetchAdd(blocks, 0, 5)
	do(&batch)
	batch.FetchAdd(blocks, 0, 5)
	require.Equal(t, uint64(5), do(&batch).Original(0))
	batch.CompareSwap(blocks, 0, 10, 0)
	require.Equal(t, uint64(10), do(&batch).Original(0))
	batch.Read(blocks, 0, read)
	do(&batch)
	require.Equal(t, memory, read)

	_, err = p.Segment(ctx, "nothing")
	require.ErrorIs(t, err, ErrNoSegment)
	require.NoError(t, b.Close())
	b = open(":7600", theirs)
	_, err = b.Register("blocks", memory, all)
	require.NoError(t, err)
	again, err := p.Segment(ctx, "blocks")
	require.NoError(t, err)
	require.NotSame(t, blocks, again)
	batch.Read(blocks, 0, read)
	_, err = a.Submit(&batch)
	require.ErrorIs(t, err, ErrStale)
	clear(read)
	batch = Batch{}
	batch.Read(again, 0, read)
	do(&batch)
	require.Equal(t, memory, read)
}
