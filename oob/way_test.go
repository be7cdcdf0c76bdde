package oob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
)

// notes is what a way has noted.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, text)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.list, "\n")
}

func requesterEnds() Ends {
	return Ends{Name: "asker", Peer: "answerer", Role: Requester, Note: func(string) {}}
}

func responderEnds() Ends {
	return Ends{Name: "answerer", Peer: "asker", Role: Responder, Note: func(string) {}}
}

func encode(t testing.TB, kind descriptor.Kind, payload string) []byte {
	t.Helper()
	b, err := descriptor.Encode(kind, []byte(payload))
	require.NoError(t, err)
	return b
}

// bundleOf is what one of the two programs gives; the responder has memory.
func bundleOf(t testing.TB, ends Ends, connections int) []byte {
	t.Helper()
	b := descriptor.Bundle{From: ends.Name, To: ends.Peer, Data: []byte("of " + ends.Name)}
	for i := range connections {
		b.Connections = append(b.Connections, encode(t, descriptor.Connection, fmt.Sprint(ends.Name, i)))
	}
	if ends.Role == Responder {
		b.Maps = append(b.Maps, encode(t, descriptor.MemoryMap, "memory"))
	}
	desc, err := b.Encode()
	require.NoError(t, err)
	return desc
}

// unarmored takes off the armor.
func unarmored(t testing.TB, desc []byte) []byte {
	t.Helper()
	b, err := descriptor.DecodeBundle(desc)
	require.NoError(t, err)
	again, err := b.Encode()
	require.NoError(t, err)
	return again
}

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// swap has two programs exchange their bundles.
func swap(t *testing.T, a, b Carrier, connections int) {
	t.Helper()
	ours, theirs := bundleOf(t, requesterEnds(), connections), bundleOf(t, responderEnds(), connections)
	done := make(chan error, 1)
	go func() {
		got, err := b.Exchange(patient(t), responderEnds(), theirs)
		if err == nil && !bytes.Equal(ours, unarmored(t, got)) {
			err = errors.New("the responder got something else")
		}
		done <- err
	}()
	got, err := a.Exchange(patient(t), requesterEnds(), ours)
	require.NoError(t, err)
	require.NoError(t, <-done)
	assert.Equal(t, theirs, unarmored(t, got))
}

func filesWay(t *testing.T, local, remote, resource string) Carrier {
	t.Helper()
	w, err := Files{Local: local, Remote: remote, Resource: resource}.Way()
	require.NoError(t, err)
	return w.carrier
}

func filesPair(t *testing.T, path string) (a, b Carrier) {
	t.Helper()
	x, y, m := filepath.Join(path, "x"), filepath.Join(path, "y"), filepath.Join(path, "m")
	return filesWay(t, x, y, m), filesWay(t, y, x, m)
}

func tcpPair(t *testing.T, address string) (a, b Carrier) {
	t.Helper()
	x, err := TCP(address)
	require.NoError(t, err)
	y, err := TCP(address)
	require.NoError(t, err)
	return x.carrier, y.carrier
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func assertEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// drain lets the goroutine of a reader end, when its input has.
func drain(r *lineReader) {
	for range r.lines {
	}
}

func TestWays(t *testing.T) {
	folder := t.TempDir()
	x, y := filepath.Join(folder, "x"), filepath.Join(folder, "y")
	makers := map[string]func() (a, b Carrier){
		"dir":      func() (a, b Carrier) { return Dir(folder).carrier, Dir(folder).carrier },
		"files":    func() (a, b Carrier) { return filesPair(t, folder) },
		"one file": func() (a, b Carrier) { return filesWay(t, x, y, ""), filesWay(t, y, x, "") },
		"tcp":      func() (a, b Carrier) { return tcpPair(t, freeAddress(t)) },
	}
	for name, newPair := range makers {
		t.Run(name, func(t *testing.T) {
			for _, ok := range []bool{true, false} {
				// The requester ends, the responder is notified of it. One that asked
				// too early asks again.
				a, b := newPair()
				swap(t, a, b, 8)
				require.ErrorIs(t, b.Done(short(t)), context.DeadlineExceeded)
				require.NoError(t, a.Close(ok))
				err := b.Done(patient(t))
				if ok {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrPeerFailed)
				}
				require.NoError(t, b.Close(ok))
				assertEmpty(t, folder)

				// The responder ends first.
				a, b = newPair()
				swap(t, a, b, 1)
				require.NoError(t, b.Close(ok))
				require.NoError(t, a.Close(ok))
				assertEmpty(t, folder)

				// The responder ends last, and has not asked.
				a, b = newPair()
				swap(t, a, b, 1)
				require.NoError(t, a.Close(ok))
				require.NoError(t, b.Close(ok))
				assertEmpty(t, folder)
			}
			// Nobody comes.
			a, b := newPair()
			_, err := a.Exchange(short(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, a.Close(false))
			_, err = b.Exchange(short(t), responderEnds(), bundleOf(t, responderEnds(), 1))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, b.Close(false))
			assertEmpty(t, folder)

			// One that was never used.
			a, _ = newPair()
			require.NoError(t, a.Close(false))
		})
	}
}

// Programs that were killed leave their files. The next two do not take them for each
// other's.
func TestLeftOver(t *testing.T) {
	folder := t.TempDir()
	for _, killed := range []string{"both", "requester", "responder"} {
		a, b := Dir(folder).carrier, Dir(folder).carrier
		swap(t, a, b, 2)
		if killed == "requester" {
			require.NoError(t, b.Close(false))
		} else if killed == "responder" {
			require.NoError(t, a.Close(false)) // its outcome stays, for nobody
		}
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.NotEmpty(t, entries)
		for _, first := range []Role{Requester, Responder} {
			a, b = Dir(folder).carrier, Dir(folder).carrier
			done := make(chan error, 1)
			late, lateEnds, early, earlyEnds := b, responderEnds(), a, requesterEnds()
			if first == Responder {
				late, lateEnds, early, earlyEnds = a, requesterEnds(), b, responderEnds()
			}
			go func() {
				got, err := early.Exchange(patient(t), earlyEnds, bundleOf(t, earlyEnds, 3))
				if err == nil && !bytes.Equal(got, bundleOf(t, lateEnds, 3)) {
					err = errors.New("an old bundle")
				}
				done <- err
			}()
			time.Sleep(3 * pollInterval) // it may see what is left over
			got, err := late.Exchange(patient(t), lateEnds, bundleOf(t, lateEnds, 3))
			require.NoError(t, err)
			require.NoError(t, <-done)
			assert.Equal(t, bundleOf(t, earlyEnds, 3), got)
		}
		require.NoError(t, a.Close(true))
		require.NoError(t, b.Done(patient(t)))
		require.NoError(t, b.Close(true))
		assertEmpty(t, folder)
	}
}

func TestStdio(t *testing.T) {
	requesterIn, toRequester, err := os.Pipe()
	require.NoError(t, err)
	responderIn, toResponder, err := os.Pipe()
	require.NoError(t, err)
	ours, theirs := Stdio(requesterIn, toResponder).carrier, Stdio(responderIn, toRequester).carrier
	swap(t, ours, theirs, 3)

	_, err = fmt.Fprintln(toResponder, "data, which is not for the other program")
	require.NoError(t, err)
	end := make(chan error)
	go func() { end <- ours.Close(true) }()
	require.NoError(t, theirs.Done(patient(t)))
	require.NoError(t, <-end)
	require.NoError(t, errors.Join(toRequester.Close(), toResponder.Close()))
	require.ErrorContains(t, theirs.Done(patient(t)), "has ended")
	drain(ours.(*stdio).lines)
	require.NoError(t, errors.Join(requesterIn.Close(), responderIn.Close()))
}

// What to paste is said whatever the logs say.
func TestStdioSaysWhatToPaste(t *testing.T) {
	var said notes
	ends := responderEnds()
	ends.Note = said.add
	w := Stdio(strings.NewReader(descriptor.Armor(bundleOf(t, requesterEnds(), 1))+"failed\n"), io.Discard).carrier
	_, err := w.Exchange(patient(t), ends, bundleOf(t, ends, 1))
	require.NoError(t, err)
	require.ErrorIs(t, w.Done(patient(t)), ErrPeerFailed)
	assert.Contains(t, said.String(), "paste the lines that it prints here")
	assert.Contains(t, said.String(), "when asker has ended, paste or type its last line")
	drain(w.(*stdio).lines)
}

// The goroutine that reads ends with the first line that comes after Close.
func TestReaderEndsAfterClose(t *testing.T) {
	for name, newWay := range map[string]func(in io.Reader) (Carrier, *lineReader){
		"stdio": func(in io.Reader) (Carrier, *lineReader) {
			w := Stdio(in, io.Discard).carrier
			return w, w.(*stdio).lines
		},
		"files": func(in io.Reader) (Carrier, *lineReader) {
			folder := t.TempDir()
			w, err := Files{Local: filepath.Join(folder, "x"), Remote: filepath.Join(folder, "y"), Enter: in}.Way()
			require.NoError(t, err)
			return w.carrier, w.carrier.(*files).enterLines
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := io.Pipe()
			w, lines := newWay(in)
			_, err := w.Exchange(short(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, w.Close(false))
			_, err = out.Write([]byte("too late\n"))
			require.NoError(t, err)
			_, ok := <-lines.lines
			assert.False(t, ok, "it has ended")
			require.NoError(t, out.Close())
		})
	}
}

func TestStdioRefuses(t *testing.T) {
	connection := descriptor.Armor(encode(t, descriptor.Connection, "c"))
	bundle := descriptor.Armor(bundleOf(t, responderEnds(), 1))
	tests := map[string]struct{ input, text string }{
		"nothing":      {"", "has ended"},
		"half":         {bundle[:len(bundle)/2], "has ended"},
		"a connection": {connection + bundle, "the pasted text is a connection descriptor"},
		"damaged":      {strings.Replace(bundle, "VlJC", "AAAA", 1), "descriptor"},
		"never ends":   {"-----BEGIN VERBENA BUNDLE-----\n" + strings.Repeat("QUFB\n", 20_000), "too long"},
		"long line":    {strings.Repeat("A", descriptor.MaxFile+1), "too long"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := Stdio(strings.NewReader(test.input), io.Discard).carrier
			_, err := w.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			require.ErrorContains(t, err, test.text)
			drain(w.(*stdio).lines)
			require.NoError(t, w.Close(true))
		})
	}
}

func TestInteractive(t *testing.T) {
	folder := t.TempDir()
	x, y, m := filepath.Join(folder, "x"), filepath.Join(folder, "y"), filepath.Join(folder, "m")
	keys, press := io.Pipe()
	way, err := Files{Local: y, Remote: x, Resource: m, Enter: keys}.Way()
	require.NoError(t, err)
	w := way.carrier
	var said notes
	ends := responderEnds()
	ends.Note = said.add
	done := make(chan error)
	go func() {
		_, err := w.Exchange(patient(t), ends, bundleOf(t, ends, 1))
		done <- err
	}()
	_, err = press.Write([]byte("\n"))
	require.NoError(t, err)
	require.ErrorContains(t, <-done, x, "Enter was pressed, and the file is not there")
	assert.Contains(t, said.String(), "copy the descriptor of asker to "+x+", then press Enter")

	require.NoError(t, descriptor.WriteFile(x, encode(t, descriptor.Connection, "binary")))
	go func() {
		_, err := w.Exchange(patient(t), ends, bundleOf(t, ends, 1))
		done <- errors.Join(err, w.Done(patient(t)))
	}()
	_, err = press.Write([]byte("\n\n"))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(w.Close(true), press.Close()))
	drain(w.(*files).enterLines)
	require.NoFileExists(t, y)
	require.NoFileExists(t, m)
	require.FileExists(t, x, "the peer's")
}

// A file that is copied slowly is taken when it is whole.
func TestFileInTheMaking(t *testing.T) { synctest.Test(t, fileInTheMaking) }

// In virtual time, the file stays as it is for less than makes it wrong.
func fileInTheMaking(t *testing.T) {
	folder := t.TempDir()
	a, _ := filesPair(t, folder)
	path := filepath.Join(folder, "y")
	whole := []byte(descriptor.Armor(encode(t, descriptor.Connection, "c")))
	require.NoError(t, os.WriteFile(path, whole[:50], 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "m"), encode(t, descriptor.MemoryMap, "m"), 0o600))
	done := make(chan error)
	go func() {
		_, err := a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
		done <- err
	}()
	time.Sleep(stableTime - pollInterval)
	require.FileExists(t, filepath.Join(folder, "x"))
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	require.NoError(t, <-done)
	require.NoError(t, a.Close(false))
}

// What another program has written into the files.
func TestFilesRefuse(t *testing.T) {
	c, m, e := encode(t, descriptor.Connection, "c"), encode(t, descriptor.MemoryMap, "m"), encode(t, descriptor.SyncEvent, "e")
	bundle := bundleOf(t, responderEnds(), 1)
	armored := func(list ...[]byte) []byte {
		var text string
		for _, b := range list {
			text += descriptor.Armor(b)
		}
		return []byte(text)
	}
	for name, test := range map[string]struct {
		remote, resource []byte
		text             string
	}{
		"several connections":   {armored(c, c), m, ""},
		"binary":                {c, m, ""},
		"an event":              {bundle, armored(e), ""},
		"a bundle and more":     {armored(bundle, c), m, "other descriptors besides a bundle"},
		"a map as a connection": {m, m, "check which of the peer's descriptors goes where"},
		"a connection as a map": {c, c, "check which of the peer's descriptors goes where"},
		"two maps":              {c, armored(m, m), "the file has 2 descriptors"},
		"a foreign block":       {[]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), m, "no block between BEGIN VERBENA"},
		"text":                  {[]byte("hello"), m, "not a descriptor"},
		"too long":              {make([]byte, descriptor.MaxFile+1), m, "too big"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			x, y, r := filepath.Join(folder, "x"), filepath.Join(folder, "y"), filepath.Join(folder, "m")
			require.NoError(t, os.WriteFile(y, test.remote, 0o600))
			require.NoError(t, os.WriteFile(r, test.resource, 0o600))
			a := filesWay(t, x, y, r)
			_, err := a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			if test.text == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.text)
			}
			require.NoError(t, a.Close(false))
		})
	}
}

// Two programs with the same part in one folder.
func TestSameFolderTwice(t *testing.T) {
	folder := t.TempDir()
	a := Dir(folder).carrier
	done := make(chan error)
	go func() {
		_, err := a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
		done <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(folder, "asker.oob")); return err == nil }, 5*time.Minute, time.Millisecond)
	// The responder comes when the first has ended: it would take either.
	again, b := Dir(folder).carrier, Dir(folder).carrier
	found := make(chan error, 1)
	go func() {
		_, err := again.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
		found <- err
	}()
	err := <-done
	_, failed := b.Exchange(patient(t), responderEnds(), bundleOf(t, responderEnds(), 1))
	require.NoError(t, failed)
	require.NoError(t, <-found)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "another program named asker uses the folder "+folder)
	require.NoError(t, errors.Join(a.Close(false), again.Close(true), b.Done(patient(t)), b.Close(true)))
	assertEmpty(t, folder)
}

// The user's own folder, in a place where anybody can make one.
func TestFolderOfOthers(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "verbena")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.Chmod(folder, 0o777))
	d := &dir{path: folder, perUser: true}
	_, err := d.Exchange(patient(t), requesterEnds(), nil)
	require.ErrorContains(t, err, "other users can write to")
	require.NoError(t, d.Close(false))
	assertEmpty(t, folder)
	require.NoError(t, os.Remove(folder))
	require.NoError(t, os.Symlink(t.TempDir(), folder))
	_, err = d.Exchange(patient(t), requesterEnds(), nil)
	require.ErrorContains(t, err, "other users can write to")
}

// Files of the folder are for their owner alone, and are what they say.
func TestFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	a, b := Dir(folder).carrier, Dir(folder).carrier
	swap(t, a, b, 1)
	info, err := os.Stat(folder)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	info, err = os.Stat(filepath.Join(folder, "asker.oob"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, errors.Join(a.Close(true), b.Close(true)))

	foreign := frame.Frame{From: "other", To: "asker"}
	content, err := foreign.Encode()
	require.NoError(t, err)
	for _, content := range [][]byte{content, []byte("{}"), content[:20], make([]byte, descriptor.MaxFile+1)} {
		path := filepath.Join(folder, "answerer.oob")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		a := Dir(folder).carrier
		_, err := a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
		require.ErrorContains(t, err, path)
		require.Error(t, a.Close(false))
		require.NoError(t, os.Remove(path))
	}
	assertEmpty(t, folder)
}

// A wrong pair is named through a folder too, whoever came first, and what is left over
// from others is not.
func TestWrongPairInFolder(t *testing.T) {
	folder := t.TempDir()
	leftOver := frame.Frame{From: "dead", To: "gone", Run: "r"}
	b, err := leftOver.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "dead.oob"), b, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "garbage.oob"), []byte("garbage"), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said [3]notes
	all := []Ends{
		{Name: "asker", Peer: "answerer", Role: Requester, Note: said[0].add},
		{Name: "writer", Peer: "reader", Role: Responder, Note: said[1].add},
		{Name: "reader", Peer: "other", Role: Requester, Note: said[2].add},
	}
	var running sync.WaitGroup
	for _, ends := range all {
		running.Go(func() {
			w := Dir(folder).carrier
			_, err := w.Exchange(ctx, ends, bundleOf(t, ends, 1))
			assert.ErrorIs(t, err, context.Canceled)
			assert.NoError(t, w.Close(false))
		})
	}
	for i, want := range [][]string{
		{"writer also uses the folder " + folder + ", and waits for reader, but this program waits for answerer", "reader also uses"},
		{"asker also uses", "reader also uses the folder " + folder + ", and waits for other, but this program waits for reader"},
		{"asker also uses", "writer also uses"},
	} {
		for _, text := range want {
			require.Eventually(t, func() bool { return strings.Contains(said[i].String(), text) }, 5*time.Minute, time.Millisecond, text)
		}
		assert.NotContains(t, said[i].String(), "dead")
		assert.NotContains(t, said[i].String(), "garbage")
	}
	cancel()
	running.Wait()
}

// Of a flood of others in the folder a few are noted, and those that went are forgotten.
func TestFloodInFolder(t *testing.T) {
	folder := t.TempDir()
	var said notes
	ends := requesterEnds()
	ends.Note = said.add
	d := &dir{path: folder, ends: ends, times: map[string]time.Time{}, noted: map[string]bool{}}
	for _, at := range []int64{1, 2} {
		for i := range 5 * maxOthers {
			name := fmt.Sprint("other", i)
			f := frame.Frame{From: name, To: "nobody", Run: "r"}
			b, err := f.Encode()
			require.NoError(t, err)
			path := filepath.Join(folder, name+suffix)
			require.NoError(t, os.WriteFile(path, b, 0o600))
			require.NoError(t, os.Chtimes(path, time.Unix(at, 0), time.Unix(at, 0)))
		}
		require.NoError(t, d.noteOtherPrograms())
	}
	assert.Len(t, said.list, maxOthers)
	assert.Len(t, d.times, 5*maxOthers)
	for i := range 5 * maxOthers {
		require.NoError(t, os.Remove(filepath.Join(folder, fmt.Sprint("other", i)+suffix)))
	}
	require.NoError(t, d.noteOtherPrograms())
	assert.Empty(t, d.times)
	assert.Len(t, d.noted, maxOthers)
}

// What a way notes without end is cut off, until the next wait.
func TestFloodOfNotes(t *testing.T) {
	n := 0
	p, err := New(Dir(t.TempDir()), Config{Name: "a", Peer: "b", Notify: func(string) { n++ }})
	require.NoError(t, err)
	for range 3 * maxNoteLines {
		p.note("again")
	}
	assert.Equal(t, maxNoteLines, n)
	p.waitFor("something else")
	p.note("a prompt")
	assert.Equal(t, maxNoteLines+1, n)
	require.NoError(t, p.Close(nil))
}

// A bundle that leaves room for what ways add, as Offer.Data says, goes by all of them.
func TestLargestOffer(t *testing.T) {
	long := strings.Repeat("a", 100)
	token := strings.Repeat("r", frame.MaxToken)
	b, err := (&descriptor.Bundle{From: long, To: long, Data: make([]byte, descriptor.MaxPayload-2048)}).Encode()
	require.NoError(t, err)
	f := frame.Frame{From: long, To: long, Run: token, Seen: token, Body: b}
	_, err = f.Encode()
	require.NoError(t, err)
	folder := t.TempDir()
	swapOf := func(a, b Carrier) {
		offer := func(ends Ends) []byte {
			desc, err := (&descriptor.Bundle{From: ends.Name, To: ends.Peer, Data: make([]byte, descriptor.MaxPayload-2048)}).Encode()
			require.NoError(t, err)
			return desc
		}
		done := make(chan error, 1)
		ours, theirs := offer(requesterEnds()), offer(responderEnds())
		go func() {
			_, err := b.Exchange(patient(t), responderEnds(), theirs)
			done <- err
		}()
		_, err := a.Exchange(patient(t), requesterEnds(), ours)
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.NoError(t, errors.Join(a.Close(true), b.Close(true)))
	}
	swapOf(Dir(folder).carrier, Dir(folder).carrier)
	swapOf(tcpPair(t, freeAddress(t)))
}

// Two programs that are both the requester, or both the responder.
func TestSameRole(t *testing.T) {
	for _, role := range []Role{Requester, Responder} {
		folder := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
			go func() {
				ends := Ends{Name: names[0], Peer: names[1], Role: role, Note: func(string) {}}
				w := Dir(folder).carrier
				_, err := w.Exchange(ctx, ends, bundleOf(t, ends, 1))
				assert.NoError(t, w.Close(false))
				errs <- err
			}()
		}
		err := <-errs
		cancel() // the other may wait in vain
		require.Error(t, <-errs)
		require.ErrorIs(t, err, ErrWrongPeer)
		require.ErrorContains(t, err, "are both the "+role.String())
	}
}

// Other programs that connect do not keep the requester out, however many, and get no
// keys.
func TestForeignersOnTCP(t *testing.T) {
	address := freeAddress(t)
	a, b := tcpPair(t, address)
	var said notes
	ends := responderEnds()
	ends.Note = said.add
	done := make(chan error)
	go func() {
		_, err := b.Exchange(patient(t), ends, bundleOf(t, ends, 1))
		done <- err
	}()
	dial := func() (conn net.Conn) {
		require.Eventually(t, func() (ok bool) {
			var err error
			conn, err = net.Dial("tcp", address)
			return err == nil
		}, 5*time.Minute, time.Millisecond)
		return conn
	}
	other := frame.Frame{From: "other", To: "answerer", Body: []byte("b")}
	hello, err := other.Encode()
	require.NoError(t, err)
	// The right names, and garbage.
	liar := frame.Frame{From: "asker", To: "answerer", Body: []byte("b")}
	lie, err := liar.Encode()
	require.NoError(t, err)
	for _, text := range []string{string(lie), "GET / HTTP/1.1\r\n\r\n", "\n", "VRBN\x02\x04\xff\xff\xff\xff", strings.Repeat("x", 2*frame.MaxSize), string(hello)} {
		conn := dial()
		_, _ = conn.Write([]byte(text))
		answer, _ := io.ReadAll(conn) // until it is rejected
		assert.NotContains(t, string(answer), "memory", "the bundle")
		require.NoError(t, conn.Close())
	}
	assert.Contains(t, said.String(), `it is from "other", but this program waits for asker`)

	// More silent ones than there is room for, and some that are slow.
	var silent []net.Conn
	for i := range 2 * maxPending {
		conn := dial()
		silent = append(silent, conn)
		if i%2 == 0 {
			_, _ = conn.Write(hello[:20])
		}
	}
	_, err = a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
	require.NoError(t, err)
	require.NoError(t, <-done)
	for _, conn := range silent {
		require.NoError(t, conn.Close())
	}
	assert.LessOrEqual(t, len(said.list), maxChanges)

	// What comes later is no report of success.
	_, err = a.(*tcp).conn.Write([]byte("succeeded\n"))
	require.NoError(t, err)
	require.ErrorContains(t, b.Done(patient(t)), "did not report whether it succeeded")
	require.NoError(t, errors.Join(a.Close(true), b.Close(true)))
}

// The requester says with whom it has to do instead of its peer.
func TestWrongAnswerOnTCP(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(hello []byte) []byte
		want   error
		text   string
	}{
		"garbage": {func([]byte) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, descriptor.ErrFormat, "wrong answer at tcp:"},
		"another": {func([]byte) []byte {
			b, err := (&frame.Frame{From: "other", To: "asker", Responder: true}).Encode()
			require.NoError(t, err)
			return b
		}, ErrWrongPeer, `from "other", but this program waits for answerer`},
		"for another": {func([]byte) []byte {
			b, err := (&frame.Frame{From: "answerer", To: "other", Responder: true}).Encode()
			require.NoError(t, err)
			return b
		}, ErrWrongPeer, `answerer waits for "other", but this program is asker`},
		"its own":   {func(hello []byte) []byte { return hello }, ErrWrongPeer, ""},
		"same role": {func([]byte) []byte { b, _ := (&frame.Frame{From: "answerer", To: "asker"}).Encode(); return b }, ErrWrongPeer, "both the requester"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			go func() {
				for i := 0; ; i++ {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					if i > 0 { // the first is cut off: the requester tries again
						hello := make([]byte, frame.MaxSize)
						n, _ := conn.Read(hello)
						_, _ = conn.Write(test.answer(hello[:n]))
					}
					_ = conn.Close()
				}
			}()
			way, err := TCP(l.Addr().String())
			require.NoError(t, err)
			w := way.carrier
			_, err = w.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			require.NoError(t, w.Close(false))
			require.NoError(t, l.Close())
		})
	}
}

// Why the requester tries again is noted once, and comes with the error.
func TestWhyNobodyAnswersOnTCP(t *testing.T) {
	a, _ := tcpPair(t, freeAddress(t))
	var said notes
	ends := requesterEnds()
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ends.Note = func(text string) {
		said.add(text)
		time.AfterFunc(3*dialInterval, func() { cancel(reason) })
	}
	_, err := a.Exchange(ctx, ends, bundleOf(t, ends, 1))
	require.ErrorIs(t, err, reason)
	require.ErrorContains(t, err, "refused")
	assert.Len(t, said.list, 1)
	assert.Contains(t, said.String(), "refused")
	require.NoError(t, a.Close(false))

	// What accepts, and closes at once.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	a, _ = tcpPair(t, l.Addr().String())
	ctx, cancel = context.WithCancelCause(t.Context())
	defer cancel(nil)
	ends.Note = func(text string) { said.add(text); cancel(reason) }
	_, err = a.Exchange(ctx, ends, bundleOf(t, ends, 1))
	require.ErrorIs(t, err, reason)
	require.ErrorContains(t, err, "the last attempt")
	assert.Len(t, said.list, 2)
	require.NoError(t, errors.Join(a.Close(false), l.Close()))
	accepting.Wait()
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"dir":             UserDir().String(),
		"dir:/x y":        "the folder /x y",
		"tcp:host.a:7471": "tcp:host.a:7471",
		"tcp::7471":       "tcp::7471",
	} {
		w, err := Parse(text)
		require.NoError(t, err)
		assert.Equal(t, want, w.String())
	}
	for _, text := range []string{"", "dir:", "tcp", "tcp:", "tcp:localhost", "tcp:localhost:none", "stdio:", "pigeon", "files"} {
		_, err := Parse(text)
		require.ErrorIs(t, err, ErrInvalid, text)
	}
	for _, f := range []Files{{}, {Local: "a"}, {Remote: "a"}, {Local: "a", Remote: "a"}, {Local: "a", Remote: "b", Resource: "b"}} {
		_, err := f.Way()
		require.ErrorIs(t, err, ErrInvalid)
	}
}

// A requester that fails at once leaves what the responder has not read yet.
func TestRequesterEndsFirst(t *testing.T) {
	for range 20 {
		folder := t.TempDir()
		a, b := Dir(folder).carrier, Dir(folder).carrier
		done := make(chan error)
		go func() {
			_, err := a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
			done <- errors.Join(err, a.Close(false))
		}()
		got, err := b.Exchange(patient(t), responderEnds(), bundleOf(t, responderEnds(), 1))
		require.NoError(t, err)
		assert.Equal(t, bundleOf(t, requesterEnds(), 1), got)
		require.NoError(t, <-done)
		require.ErrorIs(t, b.Done(patient(t)), ErrPeerFailed)
		require.NoError(t, b.Close(false))
		assertEmpty(t, folder)
	}
}

// A requester without connections that succeeds at once leaves its files to the responder,
// who may come later.
func TestRequesterWithoutConnectionsEndsFirst(t *testing.T) {
	folder := t.TempDir()
	a, b := filesPair(t, folder)
	_, err := b.Exchange(short(t), responderEnds(), bundleOf(t, responderEnds(), 0)) // its files are there
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 0))
	require.NoError(t, err)
	require.NoError(t, a.Close(true))

	got, err := b.Exchange(patient(t), responderEnds(), bundleOf(t, responderEnds(), 0))
	require.NoError(t, err)
	assert.Equal(t, bundleOf(t, requesterEnds(), 0), unarmored(t, got))
	require.NoError(t, b.Done(patient(t)))
	require.NoError(t, b.Close(true))
	assertEmpty(t, folder)
}

// A wrong pair is named through files too: the requester ends, and the responder goes on
// waiting for the right one.
func TestWrongPairByFiles(t *testing.T) {
	folder := t.TempDir()
	x, y, z := filepath.Join(folder, "x"), filepath.Join(folder, "y"), filepath.Join(folder, "z")
	wrong := Ends{Name: "other", Peer: "answerer", Role: Requester, Note: func(string) {}}
	require.NoError(t, os.WriteFile(x, []byte(descriptor.Armor(bundleOf(t, wrong, 1))), 0o600))
	ends := responderEnds()
	seen := make(chan string, 1)
	ends.Note = func(text string) { seen <- text }
	b, done := filesWay(t, y, x, ""), make(chan error)
	go func() {
		_, err := b.Exchange(patient(t), ends, bundleOf(t, ends, 1))
		done <- err
	}()
	assert.Contains(t, <-seen, `it is from "other", but this program waits for asker`)
	a := filesWay(t, z, y, "")
	_, err := a.Exchange(patient(t), Ends{Name: "asker", Peer: "another", Note: func(string) {}}, bundleOf(t, requesterEnds(), 1))
	require.ErrorIs(t, err, ErrWrongPeer)
	require.ErrorContains(t, err, `it is from "answerer", but this program waits for another`)
	require.NoError(t, a.Close(false))
	a = filesWay(t, x, y, "")
	_, err = a.Exchange(patient(t), requesterEnds(), bundleOf(t, requesterEnds(), 1))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(a.Close(false), b.Close(false)))
	assertEmpty(t, folder)
}
