package sample

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/verbena-rdma/verbena/descriptor"
)

// dir exchanges messages through a folder, one file for each program, which is
// replaced as a whole whenever there is something new to say.
//
// Files may be left over from programs that were killed. So a file counts only
// if it names our own run, which is a random number, as the one that its writer
// has seen: a writer that has seen it is alive. The requester says last what it
// has seen, so that the responder, which may fail and go at once, cannot go before
// the requester has its descriptors.
type dir struct {
	program Program
	path    string
	own     bool // the user's own folder: made here, and closed to others
	ours    message
	peer    string // the run of the peer, once it is known
}

func newDir(s *Session, path string, own bool) *dir {
	return &dir{program: s.program, path: path, own: own}
}

// defaultDir is a folder that all programs of one user have in common.
func defaultDir() string {
	return filepath.Join(os.TempDir(), "verbena-"+strconv.Itoa(os.Getuid()))
}

func (d *dir) String() string { return "the folder " + d.path }

func (d *dir) byHand() bool { return false }

func (d *dir) file(program string) string { return filepath.Join(d.path, program+".json") }

func (d *dir) prepare() error {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !d.own {
		return nil
	}
	// Anybody can make a folder of that name in a shared place.
	info, err := os.Lstat(d.path)
	if err != nil {
		return err
	}
	if !info.IsDir() || !private(info) {
		return fmt.Errorf("%s is not a folder that only its user can write to; remove it, or give another with -oob dir:PATH", d.path)
	}
	return nil
}

func (d *dir) write() error {
	b, err := d.ours.encode()
	if err != nil {
		return err
	}
	return descriptor.WriteFile(d.file(d.program.Name), b)
}

// read returns what a program has said last, and false if there is nothing.
func (d *dir) read(program string) (message, bool, error) {
	path := d.file(program)
	b, err := descriptor.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return message{}, false, nil
	}
	if err != nil {
		return message{}, false, err
	}
	m, err := decodeMessage(b, program)
	if err != nil {
		return message{}, false, fmt.Errorf("%s: %w; remove it if it is left over", path, err)
	}
	return m, true, nil
}

func (d *dir) exchange(ctx context.Context, ours Descriptors) (Descriptors, error) {
	if err := d.prepare(); err != nil {
		return Descriptors{}, err
	}
	d.ours = newMessage(d.program, ours)
	d.ours.Run = rand.Text()
	if err := d.write(); err != nil {
		return Descriptors{}, err
	}
	var theirs message
	err := poll(ctx, func() (bool, error) {
		if m, ok, err := d.read(d.program.Name); err != nil {
			return false, err
		} else if !ok || m.Run != d.ours.Run {
			return false, fmt.Errorf("another %s uses the folder %s; give each pair its own with -oob dir:PATH", d.program.Name, d.path)
		}
		m, ok, err := d.read(d.program.Peer)
		if !ok || err != nil {
			return false, err
		}
		if d.program.Role == Responder && d.ours.Seen != m.Run {
			d.ours.Seen = m.Run
			if err := d.write(); err != nil {
				return false, err
			}
		}
		theirs = m
		return m.Seen == d.ours.Run, nil
	})
	if err != nil {
		return Descriptors{}, err
	}
	if d.program.Role == Requester {
		d.ours.Seen = theirs.Run
		if err := d.write(); err != nil {
			return Descriptors{}, err
		}
	}
	d.peer = theirs.Run
	return theirs.descriptors(), nil
}

func (d *dir) peerDone(ctx context.Context) error {
	var end outcome
	err := poll(ctx, func() (bool, error) {
		m, ok, err := d.read(d.program.Peer)
		if err != nil {
			return false, err
		}
		if !ok || m.Run != d.peer {
			return false, fmt.Errorf("%s has ended without saying how", d.program.Peer)
		}
		end = m.Outcome
		return end != running, nil
	})
	if err != nil {
		return err
	}
	return end.err(d.program.Peer)
}

// close leaves no file, whichever of the two programs comes first: the requester
// leaves its outcome for the responder to remove, and removes it itself if the
// responder has gone. The responder removes its own file, and then the requester's
// outcome, which it recognizes by its own run in it.
func (d *dir) close(ok bool) error {
	if d.ours.Run == "" {
		return nil
	}
	if d.program.Role == Requester && d.peer != "" {
		if m, there, err := d.read(d.program.Name); err != nil || !there || m.Run != d.ours.Run {
			return err
		}
		d.ours.Outcome = outcomeOf(ok)
		if err := d.write(); err != nil {
			return err
		}
		if m, there, err := d.read(d.program.Peer); err == nil && there && m.Run == d.peer {
			return nil
		}
	}
	if err := d.removeFile(d.program.Name, d.ours.Run); err != nil {
		return err
	}
	m, there, err := d.read(d.program.Peer)
	if err != nil || !there || m.Outcome == running || m.Seen != d.ours.Run {
		return err
	}
	return d.removeFile(d.program.Peer, m.Run)
}

// removeFile removes the file of a program, unless another run has replaced it.
func (d *dir) removeFile(program, run string) error {
	if m, ok, err := d.read(program); err != nil || !ok || m.Run != run {
		return err
	}
	return remove(d.file(program))
}
