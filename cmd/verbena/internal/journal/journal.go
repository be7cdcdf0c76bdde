// Package journal remembers which blocks of an incomplete file have arrived and were
// right, for a transfer that is resumed after either end was killed.
//
// A journal is a file beside the incomplete one: a header, which says of what file it is,
// and the hash of each block from the first on. Each hash has a checksum of its own, since
// the last may have been written in part. Nothing in a journal is believed: Resume reads
// the blocks again, and keeps those that still have the hash.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

const (
	magic      = "VRBNJRN1"
	recordSize = proto.SumSize + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header says which file a journal is of. A file that was modified since is another one.
type Header struct {
	Path     string
	Size     uint64
	Modified time.Time
}

func (h Header) encode() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint32(b, proto.BlockSize)
	b = binary.BigEndian.AppendUint64(b, h.Size)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Modified.Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Modified.Nanosecond()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Path)))
	b = append(b, h.Path...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Journal is an open journal.
type Journal struct {
	f      *os.File
	header int64 // its length
	blocks uint64
}

// New makes an empty journal in f, which it owns from then on.
func New(f *os.File, h Header) (*Journal, error) {
	b := h.encode()
	j := &Journal{f: f, header: int64(len(b))}
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// Resume reads the journal in f, which it owns from then on, and the blocks in part that it
// tells of. It returns a journal of those, from the first on, that are right, and the
// digest of their hashes. A journal of another file, or none, is one of no blocks. Where
// stop reports true, it gives up with ErrStopped.
func Resume(f *os.File, h Header, part io.ReaderAt, stop func() bool) (*Journal, proto.Digest, error) {
	var d proto.Digest
	b := h.encode()
	have := make([]byte, len(b))
	if _, err := f.ReadAt(have, 0); err != nil || string(have) != string(b) {
		j, err := New(f, h)
		return j, d, err
	}
	j := &Journal{f: f, header: int64(len(b))}
	records := io.NewSectionReader(f, j.header, 1<<62)
	block := make([]byte, proto.BlockSize)
	for j.blocks < (h.Size-1)/proto.BlockSize { // the last block comes again, and concludes
		if stop() {
			return nil, d, errors.Join(ErrStopped, f.Close())
		}
		sum, ok := next(records)
		off := j.blocks * proto.BlockSize
		n := min(h.Size-off, proto.BlockSize)
		if !ok {
			break
		}
		if _, err := part.ReadAt(block[:n], int64(off)); err != nil || proto.SumOf(block[:n]) != sum {
			break
		}
		d.Add(sum)
		j.blocks++
	}
	if err := f.Truncate(j.header + int64(j.blocks)*recordSize); err != nil {
		return nil, d, errors.Join(err, f.Close())
	}
	return j, d, nil
}

// ErrStopped: Resume was told to stop.
var ErrStopped = errors.New("stopped")

func next(r io.Reader) (sum proto.Sum, ok bool) {
	var rec [recordSize]byte
	if _, err := io.ReadFull(r, rec[:]); err != nil {
		return sum, false
	}
	copy(sum[:], rec[:])
	return sum, crc32.Checksum(rec[:proto.SumSize], castagnoli) == binary.BigEndian.Uint32(rec[proto.SumSize:])
}

// Blocks is how many blocks the journal tells of.
func (j *Journal) Blocks() uint64 { return j.blocks }

// Append notes the next block, whose data has been written.
func (j *Journal) Append(sum proto.Sum) error {
	rec := binary.BigEndian.AppendUint32(append(make([]byte, 0, recordSize), sum[:]...), crc32.Checksum(sum[:], castagnoli))
	if _, err := j.f.WriteAt(rec, j.header+int64(j.blocks)*recordSize); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.blocks++
	return nil
}

// Reset forgets all blocks.
func (j *Journal) Reset() error {
	j.blocks = 0
	return j.f.Truncate(j.header)
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }
