package sample

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
)

// settleTime is how long a file that makes no sense must stay as it is before it
// is refused: it may be a copy in the making.
const settleTime = 500 * time.Millisecond

// files exchanges descriptors through files that the user names, one for the
// connections and one for memory or a sync event, as DOCA's samples do. The requester's end
// shows in a file beside its descriptor or, if it has failed, in that its
// descriptor is gone.
type files struct {
	session *Session
	route   route
	keys    *lineReader // nil: not interactive
	written []string
	met     bool // the exchange is complete
}

func newFiles(s *Session, r route) *files {
	f := &files{session: s, route: r}
	if r.interactive {
		f.keys = readLines(s.files.in)
	}
	return f
}

func (f *files) String() string { return "the file " + f.route.remote }

func (f *files) byHand() bool { return true }

// doneFile says that the program that owns a descriptor has succeeded.
func doneFile(path string) string { return path + ".done" }

func (f *files) exchange(ctx context.Context, ours Descriptors) (theirs Descriptors, err error) {
	if err := remove(doneFile(f.route.local)); err != nil {
		return theirs, err
	}
	resource := f.session.program.Memory
	if d := *ours.resource(resource); d != nil {
		if err := f.write(f.route.memory, d); err != nil {
			return theirs, err
		}
	}
	if err := f.write(f.route.local, ours.Connections...); err != nil {
		return theirs, err
	}
	peer := f.session.program.Peer
	if f.keys != nil {
		question := fmt.Sprintf("copy the descriptor of %s to %s", peer, f.route.remote)
		if resource.imports() {
			question += fmt.Sprintf(" and that of its %v to %s", resource, f.route.memory)
		}
		if err := f.enter(ctx, question); err != nil {
			return theirs, err
		}
	}
	if theirs.Connections, err = f.await(ctx, f.route.remote, descriptor.Connection); err != nil {
		return theirs, err
	}
	if resource.imports() {
		list, err := f.await(ctx, f.route.memory, resource.kind())
		if err != nil {
			return theirs, err
		}
		if len(list) != 1 {
			return theirs, fmt.Errorf("%s: it holds %d descriptors, not one", f.route.memory, len(list))
		}
		*theirs.resource(resource) = list[0]
	}
	f.met = true
	return theirs, nil
}

// write puts descriptors into one file, as text.
func (f *files) write(path string, descriptors ...[]byte) error {
	var text strings.Builder
	for _, d := range descriptors {
		text.WriteString(descriptor.Armor(d))
	}
	if err := descriptor.WriteFile(path, []byte(text.String())); err != nil {
		return err
	}
	f.written = append(f.written, path)
	f.session.Log.Info().Str("file", path).Msg("descriptor written")
	return nil
}

// await waits for a file of descriptors of one kind. With -interactive the file
// has to be there and whole.
func (f *files) await(ctx context.Context, path string, kind descriptor.Kind) (list [][]byte, err error) {
	if f.keys != nil {
		return readDescriptors(path, kind)
	}
	var bad time.Time // since when it has been wrong, unchanged
	var was fs.FileInfo
	err = poll(ctx, func() (bool, error) {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if list, err = readDescriptors(path, kind); err == nil {
			return true, nil
		}
		if was == nil || info.Size() != was.Size() || !info.ModTime().Equal(was.ModTime()) {
			was, bad = info, time.Now()
		}
		if info.Mode().IsRegular() && time.Since(bad) < settleTime {
			return false, nil
		}
		return false, err
	})
	return list, err
}

// readDescriptors reads a file of armored descriptors, or of one binary one.
func readDescriptors(path string, kind descriptor.Kind) ([][]byte, error) {
	b, err := descriptor.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(b, []byte("-----BEGIN")) {
		if _, err := descriptor.Decode(kind, b); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return [][]byte{b}, nil
	}
	var list [][]byte
	scanner := descriptor.NewScanner(bytes.NewReader(b))
	for {
		_, d, err := scanner.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err == nil {
			_, err = descriptor.Decode(kind, d)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, d)
	}
}

func (f *files) enter(ctx context.Context, question string) error {
	_, _ = fmt.Fprintf(f.session.files.err, "%s, then press Enter\n", question)
	_, err := f.keys.next(ctx)
	return err
}

func (f *files) peerDone(ctx context.Context) error {
	peer := f.session.program.Peer
	if f.keys != nil {
		return f.enter(ctx, "wait for "+peer+" to end")
	}
	done := doneFile(f.route.remote)
	return poll(ctx, func() (bool, error) {
		// Success is reported before the descriptor is removed.
		_, gone := os.Stat(f.route.remote)
		_, err := os.Stat(done)
		switch {
		case err == nil:
			return true, remove(done)
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		case errors.Is(gone, fs.ErrNotExist):
			return false, failed.err(peer)
		}
		return false, nil
	})
}

// close removes our descriptors, which are void now. Success is reported by a file
// that the responder removes, unless it has gone before.
func (f *files) close(ok bool) error {
	var errs []error
	if ok && f.met && f.session.program.Role == Requester && f.keys == nil {
		done := doneFile(f.route.local)
		errs = append(errs, descriptor.WriteFile(done, []byte(succeeded+"\n")))
		if _, err := os.Stat(f.route.remote); errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, remove(done))
		}
	}
	for _, path := range f.written {
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}
