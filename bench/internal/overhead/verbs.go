package overhead

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	operationSize = 8
	memorySize    = 4096
	maxBatch      = 64
)

// queuePairs are two queue pairs of one device, connected to each other, that use one completion
// queue.
type queuePairs struct {
	cq   verbs.CQ
	a, b verbs.QP
	wcs  []verbs.WC
}

func connectQueuePairs(dev verbs.Device) (q *queuePairs, err error) {
	q = &queuePairs{wcs: make([]verbs.WC, maxBatch)}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.close())
		}
	}()
	if q.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: 16 * maxBatch}); err != nil {
		return q, err
	}
	gids, err := dev.GIDs(1)
	if err != nil {
		return q, err
	}
	init := verbs.QPInit{Type: verbs.RC, SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: 4 * maxBatch, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}
	for _, qp := range []*verbs.QP{&q.a, &q.b} {
		if *qp, err = dev.DefaultPD().CreateQP(init); err != nil {
			return q, err
		}
	}
	for _, ends := range [][2]verbs.QP{{q.a, q.b}, {q.b, q.a}} {
		attr := verbs.QPAttr{
			Port: 1, Access: verbs.AccessRemoteWrite,
			DestQPN: ends[1].Num(), PathMTU: 1024, Timeout: 14, RetryCount: 6, RNRRetry: 6,
			Address: verbs.AddressAttr{DGID: gids[0].GID, SGIDIndex: gids[0].Index, Port: 1},
		}
		if err := verbstest.BringUp(ends[0], verbs.RC, attr); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *queuePairs) close() error {
	var errs []error
	for _, qp := range []verbs.QP{q.a, q.b} {
		if qp != nil {
			errs = append(errs, qp.Close())
		}
	}
	if q.cq != nil {
		errs = append(errs, q.cq.Close())
	}
	return errors.Join(errs...)
}

// post posts requests, and waits for n completions.
func (q *queuePairs) post(wrs []verbs.SendWR, n int) error {
	if _, err := q.a.PostSend(wrs); err != nil {
		return err
	}
	for n > 0 {
		found, err := q.cq.Poll(q.wcs)
		if err != nil {
			return err
		}
		for i := range q.wcs[:found] {
			if status := q.wcs[i].Status; status != verbs.StatusSuccess {
				return fmt.Errorf("a request completed with %v", status)
			}
		}
		n -= found
	}
	return nil
}

// measureVerbs measures package verbs, without contexts and tasks.
func measureVerbs(_ context.Context, b *bench) (err error) {
	q, err := connectQueuePairs(b.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	mem, err := mmap.Alloc(b.device, memorySize, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	mr, err := b.device.DefaultPD().RegMR(mem.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()

	wrs := make([]verbs.SendWR, maxBatch)
	entry := []verbs.SGE{{Addr: uint64(uintptr(unsafe.Pointer(&mem.Bytes()[0]))), Length: operationSize, LKey: mr.LKey()}}
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: entry, RemoteAddr: mr.Addr() + memorySize/2, RKey: mr.RKey()}
	}
	signal := func(n int, all bool) (completions int) {
		for i := range wrs[:n] {
			wrs[i].Flags = verbs.FlagInline
			if all || i == n-1 {
				wrs[i].Flags |= verbs.FlagSignaled
				completions++
			}
		}
		return completions
	}
	for _, n := range batches {
		completions := signal(n, true)
		if err := b.measure(fmt.Sprintf("verbs write/%d", n), n, func() error { return q.post(wrs[:n], completions) }); err != nil {
			return err
		}
	}
	signal(maxBatch, false)
	if err := b.measure(fmt.Sprintf("verbs write/%d, one completion", maxBatch), maxBatch, func() error { return q.post(wrs, 1) }); err != nil {
		return err
	}
	return b.measure("verbs, empty poll", 1, func() error { _, err := q.cq.Poll(q.wcs); return err })
}
