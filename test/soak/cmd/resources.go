package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"

	"github.com/verbena-rdma/verbena/test/footprint"
)

// resources is what a process holds at a moment without any work.
type resources struct {
	Heap       int64          // bytes in use after garbage collection
	RSS        int64          // bytes of resident memory; 0 where the system does not say
	Goroutines int            //
	Files      int            // open files, sockets included
	Kinds      map[string]int // the open files by kind
	Mappings   int            // of files and of memory that is shared
	Tasks      int            // allocated
	Buffers    int            // not returned to their inventories
	Links      int            // connections, and known endpoints
}

// How much more a process may hold than at the first quiet points. For the heap this follows
// from what may remain of peers that are gone: each of the server's endpoints for datagrams
// keeps address handles; that of UD also keeps the peers that it knows by their messages; the
// device keeps the SRD peers of the last minute, of which there may be more than at first, and how
// fast hosts answer. Nothing may remain of connections.
const (
	heapTolerance = endpoints*keptHandles*handleSize + learnedPeers*learnedSize + morePeers*peerSize + otherHeap
	rssTolerance  = 32 << 20

	endpoints    = 2    // one of UD, one of SRD
	keptHandles  = 1024 // handleLimit of package rdma
	handleSize   = 1100 // bytes, with its peer and the device's data for it (measured)
	learnedPeers = 4096 // maxLearnedPeers of package rdma
	learnedSize  = 220  // bytes (measured)
	morePeers    = 512
	peerSize     = 2700      // bytes of an srd.Context (measured)
	otherHeap    = 512 << 10 // bytes of maps and queues that do not shrink, and of answer times
)

// processResources measures this process.
func processResources() resources {
	m := footprint.Measure()
	h := resources{Heap: int64(m.Heap), RSS: int64(m.Resident), Goroutines: runtime.NumGoroutine(), Mappings: sharedMappings(), Kinds: openFiles()}
	for _, n := range h.Kinds {
		h.Files += n
	}
	return h
}

// profiles is the folder for heap profiles; empty: none are written.
var profiles string

// writeProfile writes a heap profile, for go tool pprof -diff_base.
func writeProfile(number int) error {
	f, err := os.Create(filepath.Join(profiles, fmt.Sprintf("heap%03d.pprof", number)))
	if err != nil {
		return err
	}
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

// counts returns an error for each number that has grown, and for anything left over.
func (h *resources) counts(base *resources) error {
	var err error
	more := func(what string, now, before int) {
		if now > before {
			err = errors.Join(err, fmt.Errorf("%d %s, %d before", now, what, before))
		}
	}
	more("goroutines", h.Goroutines, base.Goroutines)
	more(fmt.Sprintf("open files (%v, before %v)", h.Kinds, base.Kinds), h.Files, base.Files)
	more("shared mappings", h.Mappings, base.Mappings)
	more("tasks allocated", h.Tasks, base.Tasks)
	return errors.Join(err, h.leftOver(base.Links))
}

// leftOver returns an error for a wrong number of connections, and for buffers not returned.
func (h *resources) leftOver(links int) error {
	var err error
	if h.Links != links {
		err = errors.Join(err, fmt.Errorf("%d connections, want %d", h.Links, links))
	}
	if h.Buffers != 0 {
		err = errors.Join(err, fmt.Errorf("%d buffers are in use", h.Buffers))
	}
	return err
}

// memory returns an error if the memory has grown by more than is tolerated.
func (h *resources) memory(base *resources) error {
	var err error
	if h.Heap > base.Heap+heapTolerance {
		err = errors.Join(err, fmt.Errorf("%s in Go's heap, %s at the first quiet points; the tolerance is %s",
			amount(uint64(h.Heap)), amount(uint64(base.Heap)), amount(heapTolerance)))
	}
	if h.RSS > base.RSS+rssTolerance {
		err = errors.Join(err, fmt.Errorf("%s of resident memory, %s at the first quiet points; the tolerance is %s",
			amount(uint64(h.RSS)), amount(uint64(base.RSS)), amount(rssTolerance)))
	}
	return err
}

// String describes it in one line.
func (h *resources) String() string {
	return fmt.Sprintf("heap %s, resident %s, %d goroutines, %d files, %d mappings",
		amount(uint64(h.Heap)), amount(uint64(h.RSS)), h.Goroutines, h.Files, h.Mappings)
}
