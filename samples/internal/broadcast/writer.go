package broadcast

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Writer writes the stream to one consumer, whenever its ring has room. It belongs to the
// engine's goroutine.
type Writer struct {
	Name      string // of the consumer
	Conn      *rdma.Connection
	Ring      *mmap.Map // memory of the consumer
	Stream    *mmap.Map
	ChunkSize int
	Tasks     *rdma.Pool // made with pe.TaskDone and pe.TaskFailed

	sent, written, taken uint32 // chunks: submitted, acknowledged by the consumer's device, taken by its program
}

func (w *Writer) chunks() uint32 { return uint32(w.Stream.Len() / w.ChunkSize) }

// Complete reports whether the consumer has taken all chunks.
func (w *Writer) Complete() bool { return w.taken == w.chunks() }

// Push writes as many chunks as the consumer has room for. A credit can arrive before the
// completion of its write. Push waits for both, so that at most Slots tasks of one consumer
// are in flight.
func (w *Writer) Push() {
	for w.sent < w.chunks() && w.sent < min(w.taken, w.written)+Slots && w.Conn.State() == rdma.Ready {
		src := bufinv.Source(w.Stream, int(w.sent)*w.ChunkSize, w.ChunkSize)
		dst := bufinv.Target(w.Ring, int(w.sent%Slots)*w.ChunkSize, w.ChunkSize)
		task, err := w.Tasks.WriteImm(w.Conn, src, dst, w.sent)
		if pe.SubmitOrFree(task, err, w.wrote) != nil {
			_ = w.Conn.Close()
			return
		}
		w.sent++
	}
}

func (w *Writer) wrote(t *rdma.Task, err error) {
	_ = t.Free()
	if err == nil { // an error means that the connection has failed
		w.written++
		w.Push()
	}
}

// Credit handles a consumer's report of how many chunks it has taken, and writes more. A wrong
// number closes the connection.
func (w *Writer) Credit(taken uint32) {
	if taken < w.taken || taken > w.sent {
		_ = w.Conn.Close()
		return
	}
	w.taken = taken
	w.Push()
}
