package verbs_test

import (
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

// A program in the verbs' own style. Its queue pair is connected to itself, so that the
// example stands alone, and writes from one half of a page to the other.
func ExampleQP() {
	dev := must(device.Open("soft-lo"))
	gid := must(dev.GIDs(1))[0]
	cq := must(dev.CreateCQ(verbs.CQInit{Capacity: 1}))
	page := make([]byte, 4096)
	var pinned runtime.Pinner // a region of the Go heap has to stay where it is
	pinned.Pin(&page[0])
	mr := must(dev.DefaultPD().RegMR(page, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	qp := must(dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1}))

	check(qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: verbs.AccessRemoteWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	check(qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToReceive, PathMTU: 4096, DestQPN: qp.Num(), RQPSN: 1000, MinRNRTimer: 12,
		Address: verbs.AddressAttr{DGID: gid.GID, SGIDIndex: gid.Index, UDPPort: gid.UDPPort},
	}, verbs.QPAttrState|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer))
	check(qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: 1000, Timeout: 14, RetryCount: 7, RNRRetry: 7},
		verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
			verbs.QPAttrMaxInitReadAtomic))

	copy(page, "by hand")
	must(qp.PostSend([]verbs.SendWR{{
		ID: 7, Op: verbs.OpWrite, Flags: verbs.FlagSignaled,
		SGL:        []verbs.SGE{{Addr: mr.Addr(), Length: 7, LKey: mr.LKey()}},
		RemoteAddr: mr.Addr() + 2048, RKey: mr.RKey(),
	}}))
	for wc := make([]verbs.WC, 1); ; {
		if must(cq.Poll(wc)) > 0 {
			fmt.Printf("request %d: %v: %s\n", wc[0].ID, wc[0].Status, page[2048:2055])
			break
		}
	}
	check(qp.Close())
	check(mr.Close())
	pinned.Unpin()
	check(cq.Close())
	check(dev.Close())
	// Output: request 7: success: by hand
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
