package oob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
)

const (
	suffix = ".oob"
	// heartbeatInterval is how often a waiting program updates the time of its file, to show that it
	// is alive, and looks for other programs in the folder.
	heartbeatInterval = time.Second
	// maxEntries is how many entries of a folder are read.
	maxEntries = 1000
	// maxOthers is how many programs that wait for other peers are noted.
	maxOthers = 8
)

// dir exchanges frames through a folder, with one file for each program. A program always
// replaces its whole file.
//
// Files may be left over from programs that were killed. So a file counts only if its Seen is
// our Run, a random text: then its writer has read our file, and is alive. The requester writes
// its Seen last, after it has read the responder's descriptors. So the responder, which may fail
// and end at once, cannot end before that.
type dir struct {
	path    string
	perUser bool // the user's own folder: created here, and not accessible to other users
	ends    Ends
	ours    frame.Frame
	peer    string               // the run of the peer, once it is known
	times   map[string]time.Time // times of other programs' files, at the last look
	noted   map[string]bool
}

// Dir exchanges through a folder that both programs can access, such as one on a file
// system that their hosts share. A missing folder is created, with mode 0700, if its
// parent exists. Each program has one file there, NAME.oob, with mode 0600, and
// removes it at its end. A folder serves any number of pairs with different names.
func Dir(path string) Way { return Carried(&dir{path: path}) }

// UserDir is Dir for a folder that all programs of one user on one host share, in the system's
// directory for temporary files. A folder that other users can write to is refused.
func UserDir() Way {
	return Carried(&dir{path: filepath.Join(os.TempDir(), "verbena-"+strconv.Itoa(os.Getuid())), perUser: true})
}

func (d *dir) String() string { return "the folder " + d.path }

func (d *dir) file(program string) string { return filepath.Join(d.path, program+suffix) }

func (d *dir) prepare() error {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !d.perUser {
		return nil
	}
	// In a shared directory, any user can create a folder of that name.
	info, err := os.Lstat(d.path)
	if err != nil {
		return err
	}
	if !info.IsDir() || !private(info) {
		return fmt.Errorf("other users can write to %s, or it is not a folder; remove it, or give another folder with dir:PATH", d.path)
	}
	return nil
}

func (d *dir) write() error {
	b, err := d.ours.Encode()
	if err != nil {
		return err
	}
	return descriptor.WriteFile(d.file(d.ours.From), b)
}

// read returns the current frame of a program, and false if there is none.
func (d *dir) read(program string) (frame.Frame, bool, error) {
	path := d.file(program)
	b, err := descriptor.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return frame.Frame{}, false, nil
	}
	if err != nil {
		return frame.Frame{}, false, err
	}
	f, err := frame.Decode(b)
	if err == nil && f.From != program {
		err = fmt.Errorf("%w: it is from %.100q", ErrWrongPeer, f.From)
	}
	if err != nil {
		return frame.Frame{}, false, fmt.Errorf("%s: %w; remove it if it is left over", path, err)
	}
	return f, true, nil
}

func (d *dir) Exchange(ctx context.Context, ends Ends, ours []byte) ([]byte, error) {
	d.ends = ends
	if err := d.prepare(); err != nil {
		return nil, err
	}
	d.ours = frame.Frame{From: ends.Name, To: ends.Peer, Responder: ends.Role == Responder, Body: ours, Run: rand.Text()}
	if err := d.write(); err != nil {
		return nil, err
	}
	d.times, d.noted = map[string]time.Time{}, map[string]bool{}
	var theirs frame.Frame
	next := time.Now().Add(heartbeatInterval)
	err := poll(ctx, func() (bool, error) {
		if f, ok, err := d.read(ends.Name); err != nil {
			return false, err
		} else if !ok || f.Run != d.ours.Run {
			return false, fmt.Errorf("%w: another program named %s uses the folder %s; give each pair its own folder with dir:PATH", ErrInUse, ends.Name, d.path)
		}
		if now := time.Now(); now.After(next) {
			next = now.Add(heartbeatInterval)
			_ = os.Chtimes(d.file(ends.Name), now, now) // only a sign of life, so errors are ignored
			if err := d.noteOtherPrograms(); err != nil {
				return false, err
			}
		}
		f, ok, err := d.read(ends.Peer)
		if !ok || err != nil || f.To != ends.Name {
			return false, err // noteOtherPrograms reports a program that waits for another peer
		}
		if ends.Role == Responder && d.ours.Seen != f.Run {
			d.ours.Seen = f.Run
			if err := d.write(); err != nil {
				return false, err
			}
		}
		theirs = f
		return f.Seen == d.ours.Run, nil
	})
	if err != nil {
		return nil, err
	}
	if theirs.Responder == d.ours.Responder {
		return nil, sameRole(ends)
	}
	if ends.Role == Requester {
		d.ours.Seen = theirs.Run
		if err := d.write(); err != nil {
			return nil, err
		}
	}
	d.peer = theirs.Run
	return theirs.Body, nil
}

// noteOtherPrograms notes the live programs in the folder that wait for programs other than this one.
// Pairs may share a folder, so this is no error, but it helps a person who has started the wrong
// two programs.
func (d *dir) noteOtherPrograms() error {
	folder, err := os.Open(d.path)
	if err != nil {
		return nil // reading our own file gives a better error
	}
	defer func() { _ = folder.Close() }()
	entries, _ := folder.ReadDir(maxEntries)
	before := d.times
	d.times = make(map[string]time.Time, len(entries)) // only files that still exist
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || name == d.ends.Name || checkName("", name) != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		was, seen := before[name]
		d.times[name] = info.ModTime()
		if !seen || was.Equal(info.ModTime()) {
			continue // the file may be left over
		}
		f, ok, err := d.read(name)
		switch {
		case err != nil || !ok || f.Seen != "" || f.Outcome != frame.Running:
		case name == d.ends.Peer && f.To == d.ends.Name:
			if f.Responder == d.ours.Responder {
				return sameRole(d.ends)
			}
		case len(d.noted) < maxOthers && !d.noted[f.From+" "+f.To]:
			d.noted[f.From+" "+f.To] = true
			d.ends.Note(fmt.Sprintf("%s also uses %v, and waits for %s, but this program waits for %s: start the two programs of a pair",
				f.From, d, f.To, d.ends.Peer))
		}
	}
	return nil
}

func (d *dir) Done(ctx context.Context) error {
	var end frame.Outcome
	err := poll(ctx, func() (bool, error) {
		f, ok, err := d.read(d.ends.Peer)
		if err != nil {
			return false, err
		}
		if !ok || f.Run != d.peer {
			return false, fmt.Errorf("%s ended without reporting whether it succeeded", d.ends.Peer)
		}
		end = f.Outcome
		return end != frame.Running, nil
	})
	if err == nil && end == frame.Failed {
		err = peerFailed(d.ends.Peer)
	}
	return err
}

// Close leaves no file, whichever program closes first. The requester writes its outcome, which
// the responder removes; if the responder has ended, the requester removes it itself. The
// responder removes its own file, and then the requester's outcome, whose Seen is the
// responder's Run.
func (d *dir) Close(ok bool) error {
	if d.ours.Run == "" {
		return nil
	}
	if d.ends.Role == Requester && d.peer != "" {
		if f, there, err := d.read(d.ends.Name); err != nil || !there || f.Run != d.ours.Run {
			return err
		}
		d.ours.Outcome = frame.OutcomeOf(ok) // keep the rest: the responder may not have read it yet
		if err := d.write(); err != nil {
			return err
		}
		if f, there, err := d.read(d.ends.Peer); err == nil && there && f.Run == d.peer {
			return nil
		}
	}
	if err := d.removeFile(d.ends.Name, d.ours.Run); err != nil {
		return err
	}
	f, there, err := d.read(d.ends.Peer)
	if err != nil || !there || f.Outcome == frame.Running || f.Seen != d.ours.Run {
		return err
	}
	return d.removeFile(d.ends.Peer, f.Run)
}

// removeFile removes the file of a program, unless another run has replaced it.
func (d *dir) removeFile(program, run string) error {
	if f, ok, err := d.read(program); err != nil || !ok || f.Run != run {
		return err
	}
	return remove(d.file(program))
}
