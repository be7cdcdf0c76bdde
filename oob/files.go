package oob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
)

// stableTime is how long an invalid file must stay unchanged before it is refused: copying
// it may still be under way.
const stableTime = 500 * time.Millisecond

// Files names the files of an exchange by files that a person or a program copies between
// the hosts, as for the flags -ld, -re and -m of DOCA's samples. Each file holds one
// armored descriptor: that of the connection or endpoint, which programs without this
// package can read too, or a bundle, if more is offered. Binary files are read as well. A
// plain descriptor names no program, so a wrong peer is detected only by what it offers.
//
// A requester that succeeded creates LOCAL.done beside its descriptor; a requester that failed
// removes its descriptor. A requester without connections may end before the responder has read
// its files: if it succeeded, it leaves them, and the responder removes them.
type Files struct {
	Local  string // the offer of this program, which writes it
	Remote string // the offer of the peer; this program waits for it
	// Resource is the file of the only memory map or sync event: this program writes
	// it if it offers one, and otherwise waits for the peer's. Empty: maps and events are
	// in the same file as the connections.
	Resource string
	// Enter, if not nil, is the input on which a person presses Enter when the files have been
	// copied; Config.Notify asks for it. Nil: the program polls for the files.
	Enter io.Reader
}

// files is the Carrier of Files.
type files struct {
	Files
	enterLines *lineReader // nil: not interactive
	ends       Ends
	written    []string // files of ours
	read       []string // files of the peer
	exchanged  bool     // the exchange is complete
	// connectionless: no connection shows whether the responder has read our files.
	connectionless bool
}

// Way returns the Way. It fails with an error that matches ErrInvalid if Local or Remote is
// missing, or a file is named twice.
func (f Files) Way() (Way, error) {
	switch {
	case f.Local == "" || f.Remote == "":
		return Way{}, fmt.Errorf("%w: give both the local and the remote file", ErrInvalid)
	case f.Local == f.Remote || f.Local == f.Resource || f.Remote == f.Resource:
		return Way{}, fmt.Errorf("%w: the same file is named twice", ErrInvalid)
	}
	w := &files{Files: f}
	if f.Enter != nil {
		w.enterLines = readLines(f.Enter)
	}
	return Carried(w), nil
}

func (f *files) String() string { return "the file " + f.Remote }

// doneFile names the file by which the owner of a descriptor reports success.
func doneFile(path string) string { return path + ".done" }

func (f *files) Exchange(ctx context.Context, ends Ends, ours []byte) ([]byte, error) {
	f.ends = ends
	if err := remove(doneFile(f.Local)); err != nil {
		return nil, err
	}
	b, err := descriptor.DecodeBundle(ours)
	if err != nil {
		return nil, err
	}
	resources := append(append([][]byte{}, b.Maps...), b.Events...)
	f.connectionless = len(b.Connections) == 0
	f.read = []string{f.Remote}
	imports := len(resources) == 0 && f.Resource != ""
	if imports {
		f.read = append(f.read, f.Resource)
	}
	if len(resources) > 0 && f.Resource != "" {
		if len(resources) > 1 {
			return nil, fmt.Errorf("%w: %d memory maps and sync events are offered, but file %s holds only one; without that file, they go with the connections",
				ErrInvalid, len(resources), f.Resource)
		}
		if err := f.write(f.Resource, resources[0]); err != nil {
			return nil, err
		}
		b.Maps, b.Events = nil, nil
	}
	descriptors := append(slices.Clip(b.Connections), b.Endpoints...)
	if len(descriptors) == 1 && len(b.Maps)+len(b.Events)+len(b.Data) == 0 {
		ours = descriptors[0]
	} else if ours, err = b.Encode(); err != nil {
		return nil, err
	}
	if err := f.write(f.Local, ours); err != nil {
		return nil, err
	}
	if f.enterLines != nil {
		question := fmt.Sprintf("copy the descriptor of %s to %s", ends.Peer, f.Remote)
		if imports {
			question += " and that of its memory or event to " + f.Resource
		}
		if err := f.waitForEnter(ctx, question); err != nil {
			return nil, err
		}
	}
	theirs := &descriptor.Bundle{From: ends.Peer, To: ends.Name}
	note := ends.noteChanges()
	err = f.await(ctx, f.Remote, func() error {
		*theirs = descriptor.Bundle{From: ends.Peer, To: ends.Name}
		_, err := readInto(theirs, f.Remote, descriptor.Connection, descriptor.Endpoint, descriptor.Bundled)
		if err != nil || theirs.From == ends.Peer && theirs.To == ends.Name {
			return err
		}
		err = fmt.Errorf("%s: %w", f.Remote, notFrom(ends, theirs.From, theirs.To))
		if ends.Role == Requester || f.enterLines != nil {
			return err
		}
		// As over TCP, a responder keeps waiting for the right program.
		note(err.Error())
		return errNotYet
	})
	if err == nil && imports {
		err = f.await(ctx, f.Resource, func() error {
			with := *theirs
			n, err := readInto(&with, f.Resource, descriptor.MemoryMap, descriptor.SyncEvent)
			if err == nil && n != 1 {
				err = fmt.Errorf("%s: the file has %d descriptors; it must have one", f.Resource, n)
			}
			if err == nil {
				*theirs = with
			}
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	f.exchanged = true
	return theirs.Encode()
}

// write writes an armored descriptor to a file.
func (f *files) write(path string, desc []byte) error {
	if err := descriptor.WriteFile(path, []byte(descriptor.Armor(desc))); err != nil {
		return err
	}
	f.written = append(f.written, path)
	return nil
}

// errNotYet makes await read the file again.
var errNotYet = errors.New("not yet")

// await waits until a file exists and read accepts it. After a person has pressed Enter, the
// file must exist.
func (f *files) await(ctx context.Context, path string, read func() error) error {
	if f.enterLines != nil {
		return read()
	}
	var bad time.Time // since when the file has been invalid and unchanged
	var was fs.FileInfo
	return poll(ctx, func() (bool, error) {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		err = read()
		if err == nil || errors.Is(err, errNotYet) || errors.Is(err, ErrWrongPeer) {
			return err == nil, ignore(err, errNotYet)
		}
		if was == nil || info.Size() != was.Size() || !info.ModTime().Equal(was.ModTime()) {
			was, bad = info, time.Now()
		}
		if info.Mode().IsRegular() && time.Since(bad) < stableTime {
			return false, nil
		}
		return false, err
	})
}

// ignore returns err, or nil if err matches ignored.
func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// readInto reads a file of armored descriptors, or of one binary descriptor, into a bundle. It
// returns their number.
func readInto(into *descriptor.Bundle, path string, kinds ...descriptor.Kind) (n int, err error) {
	b, err := descriptor.ReadFile(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if !bytes.Contains(b, []byte("-----BEGIN")) {
		_, err := add(into, b, kinds)
		return 1, err
	}
	hasBundle := false
	for scanner := descriptor.NewScanner(bytes.NewReader(b)); ; n++ {
		_, d, err := scanner.Next()
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return 0, fmt.Errorf("%w: the file has no block between BEGIN VERBENA and END VERBENA", descriptor.ErrFormat)
		case errors.Is(err, io.EOF) && n > 1 && hasBundle:
			return n, fmt.Errorf("%w: the file has other descriptors besides a bundle", descriptor.ErrTrailing)
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
		kind, err := add(into, d, kinds)
		if err != nil {
			return n, err
		}
		hasBundle = hasBundle || kind == descriptor.Bundled
	}
}

// add adds a descriptor of one of the kinds to a bundle, which a bundle replaces.
func add(into *descriptor.Bundle, desc []byte, kinds []descriptor.Kind) (descriptor.Kind, error) {
	kind, _, err := descriptor.Parse(desc)
	if err != nil {
		return kind, err
	}
	if !slices.Contains(kinds, kind) {
		var names []string
		for _, k := range kinds {
			names = append(names, k.String())
		}
		return kind, fmt.Errorf("%w: it is a %v descriptor, but a %s is needed; check which of the peer's descriptors goes where",
			descriptor.ErrKind, kind, strings.Join(names, " or "))
	}
	switch kind {
	case descriptor.Connection:
		into.Connections = append(into.Connections, desc)
	case descriptor.Endpoint:
		into.Endpoints = append(into.Endpoints, desc)
	case descriptor.MemoryMap:
		into.Maps = append(into.Maps, desc)
	case descriptor.SyncEvent:
		into.Events = append(into.Events, desc)
	case descriptor.Bundled:
		b, err := descriptor.DecodeBundle(desc)
		if err != nil {
			return kind, err
		}
		*into = *b
	}
	return kind, nil
}

func (f *files) waitForEnter(ctx context.Context, question string) error {
	f.ends.Note(question + ", then press Enter")
	_, err := f.enterLines.next(ctx)
	return err
}

func (f *files) Done(ctx context.Context) error {
	if f.enterLines != nil {
		return f.waitForEnter(ctx, "wait for "+f.ends.Peer+" to end")
	}
	done := doneFile(f.Remote)
	return poll(ctx, func() (bool, error) {
		// Success is reported before the descriptor is removed.
		_, gone := os.Stat(f.Remote)
		_, err := os.Stat(done)
		switch {
		case err == nil:
			return true, nil // Close removes it
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		case errors.Is(gone, fs.ErrNotExist):
			return false, peerFailed(f.ends.Peer)
		}
		return false, nil
	})
}

// Close removes our files, which are now invalid. A requester reports success by a file, which
// the responder removes. If the responder has already ended, the requester removes it.
func (f *files) Close(ok bool) error {
	if f.enterLines != nil {
		f.enterLines.close()
	}
	var errs []error
	keep := false
	if ok && f.exchanged && f.ends.Role == Requester && f.enterLines == nil {
		done := doneFile(f.Local)
		errs = append(errs, descriptor.WriteFile(done, []byte(succeeded+"\n")))
		_, err := os.Stat(f.Remote)
		gone := errors.Is(err, fs.ErrNotExist)
		if gone {
			errs = append(errs, remove(done))
		}
		keep = f.connectionless && !gone
	}
	if !keep {
		errs = append(errs, removeAll(f.written))
	}
	// A responder removes the report even if it did not call Done. Its own files were removed
	// above: a requester that reports later sees that, and leaves no report.
	if f.exchanged && f.ends.Role == Responder {
		done := doneFile(f.Remote)
		if _, err := os.Stat(done); err == nil && f.connectionless {
			errs = append(errs, removeAll(f.read))
		}
		errs = append(errs, remove(done))
	}
	return errors.Join(errs...)
}

// removeAll removes files. It is no error if they are already gone.
func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}
