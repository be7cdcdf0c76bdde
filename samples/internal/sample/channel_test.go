package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
)

var (
	requesterProgram = Program{Name: "asker", Role: Requester, Peer: "answerer", Memory: ImportsMemory}
	responderProgram = Program{Name: "answerer", Role: Responder, Peer: "asker", Memory: ExportsMemory}
)

// newSession parses a command line; input is the standard input.
func newSession(t *testing.T, p Program, input io.Reader, args ...string) (*Session, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	s, err := parse(p, append([]string{"-l", "error"}, args...), stdio{in: input, out: &out, err: io.Discard})
	require.NoError(t, err)
	return s, &out
}

func encode(t *testing.T, kind descriptor.Kind, payload string) []byte {
	t.Helper()
	b, err := descriptor.Encode(kind, []byte(payload))
	require.NoError(t, err)
	return b
}

// descriptors of the two sides, as many connections as are asked for.
func descriptorsOf(t *testing.T, p Program, connections int) Descriptors {
	t.Helper()
	var d Descriptors
	for i := range connections {
		d.Connections = append(d.Connections, encode(t, descriptor.Connection, p.Name+string(rune('0'+i))))
	}
	switch p.Memory {
	case ExportsMemory:
		d.Memory = encode(t, descriptor.MemoryMap, "memory")
	case ExportsEvent:
		d.Event = encode(t, descriptor.SyncEvent, "event")
	}
	return d
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

// swap has two programs exchange their descriptors.
func swap(t *testing.T, a, b channel, connections int) {
	t.Helper()
	ours, theirs := descriptorsOf(t, requesterProgram, connections), descriptorsOf(t, responderProgram, connections)
	done := make(chan error, 1)
	go func() {
		got, err := b.exchange(patient(t), theirs)
		if err == nil && !assert.ObjectsAreEqual(canonical(ours), canonical(got)) {
			err = errors.New("the responder got something else")
		}
		done <- err
	}()
	got, err := a.exchange(patient(t), ours)
	require.NoError(t, err)
	require.NoError(t, <-done)
	assert.Equal(t, canonical(theirs), canonical(got))
}

// canonical strips armor.
func canonical(d Descriptors) [][]byte {
	var list [][]byte
	for _, b := range append(append([][]byte{}, d.Connections...), d.Memory, d.Event) {
		if b == nil {
			continue
		}
		_, payload, err := descriptor.Parse(b)
		if err != nil {
			return nil
		}
		list = append(list, payload)
	}
	return list
}

func dirPair(t *testing.T, path string) (a, b channel) {
	t.Helper()
	ours, _ := newSession(t, requesterProgram, nil, "-oob", "dir:"+path)
	theirs, _ := newSession(t, responderProgram, nil, "-oob", "dir:"+path)
	return ours.channel, theirs.channel
}

func filesPair(t *testing.T, path string) (a, b channel) {
	t.Helper()
	x, y, m := filepath.Join(path, "x"), filepath.Join(path, "y"), filepath.Join(path, "m")
	ours, _ := newSession(t, requesterProgram, nil, "-ld", x, "-re", y, "-m", m)
	theirs, _ := newSession(t, responderProgram, nil, "-ld", y, "-re", x, "-m", m)
	return ours.channel, theirs.channel
}

func tcpPair(t *testing.T, address string) (a, b channel) {
	t.Helper()
	ours, _ := newSession(t, requesterProgram, nil, "-oob", "tcp:"+address)
	theirs, _ := newSession(t, responderProgram, nil, "-oob", "tcp:"+address)
	return ours.channel, theirs.channel
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

func TestChannels(t *testing.T) {
	dir := t.TempDir()
	makers := map[string]func() (a, b channel){
		"dir":   func() (a, b channel) { return dirPair(t, dir) },
		"files": func() (a, b channel) { return filesPair(t, dir) },
		"tcp":   func() (a, b channel) { return tcpPair(t, freeAddress(t)) },
	}
	for name, newPair := range makers {
		t.Run(name, func(t *testing.T) {
			for _, ok := range []bool{true, false} {
				// The requester ends, the responder learns how.
				a, b := newPair()
				swap(t, a, b, 8)
				require.ErrorIs(t, b.peerDone(short(t)), context.DeadlineExceeded)
				if name == "tcp" { // what was cut off in the middle cannot go on
					require.NoError(t, errors.Join(a.close(ok), b.close(ok)))
					a, b = newPair()
					swap(t, a, b, 8)
				}
				require.NoError(t, a.close(ok))
				err := b.peerDone(patient(t))
				if ok {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errPeerFailed)
				}
				require.NoError(t, b.close(ok))
				assertEmpty(t, dir)

				// The responder ends first.
				a, b = newPair()
				swap(t, a, b, 1)
				require.NoError(t, b.close(ok))
				require.NoError(t, a.close(ok))
				assertEmpty(t, dir)

				// The responder ends last, and has not asked.
				a, b = newPair()
				swap(t, a, b, 1)
				require.NoError(t, a.close(ok))
				require.NoError(t, b.close(ok))
				if name != "files" {
					assertEmpty(t, dir)
				} else {
					require.NoError(t, remove(doneFile(filepath.Join(dir, "x"))))
				}
			}
			// Nobody comes.
			a, b := newPair()
			for _, c := range []channel{a, b} {
				_, err := c.exchange(short(t), descriptorsOf(t, responderProgram, 1))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, c.close(false))
			}
			assertEmpty(t, dir)
		})
	}
}

func TestStdio(t *testing.T) {
	requesterIn, toRequester, err := os.Pipe()
	require.NoError(t, err)
	responderIn, toResponder, err := os.Pipe()
	require.NoError(t, err)
	ours, _ := newSession(t, requesterProgram, requesterIn, "-oob", "stdio")
	theirs, _ := newSession(t, responderProgram, responderIn, "-oob", "stdio")
	ours.files.out, theirs.files.out = toResponder, toRequester
	swap(t, ours.channel, theirs.channel, 3)

	ours.Print("data, which is not for the other program")
	end := make(chan error)
	go func() { end <- ours.channel.close(true) }()
	require.NoError(t, theirs.channel.peerDone(patient(t)))
	require.NoError(t, <-end)
	require.NoError(t, errors.Join(toRequester.Close(), toResponder.Close()))
	require.ErrorContains(t, theirs.channel.peerDone(patient(t)), "has ended")
	for range ours.channel.(*paste).lines.lines { // let its goroutine end
	}
	require.NoError(t, errors.Join(requesterIn.Close(), responderIn.Close()))
}

func TestStdioRefuses(t *testing.T) {
	connection := descriptor.Armor(encode(t, descriptor.Connection, "c"))
	memory := descriptor.Armor(encode(t, descriptor.MemoryMap, "m"))
	tests := map[string]struct{ input, text string }{
		"nothing":         {"", "has ended"},
		"half":            {connection, "has ended"},
		"two connections": {connection + connection + memory, "too many"},
		"two memories":    {memory + memory + connection, "too many"},
		"damaged":         {strings.Replace(connection, "VlJC", "AAAA", 1), "descriptor"},
		"never ends":      {"-----BEGIN VERBENA CONNECTION-----\n" + strings.Repeat("QUFB\n", 20_000), "too long"},
		"long line":       {strings.Repeat("A", maxMessage+1), "too long"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := newSession(t, requesterProgram, strings.NewReader(test.input), "-oob", "stdio")
			_, err := s.channel.exchange(patient(t), descriptorsOf(t, requesterProgram, 1))
			require.ErrorContains(t, err, test.text)
			for range s.channel.(*paste).lines.lines { // let its goroutine end
			}
		})
	}
}

func TestInteractive(t *testing.T) {
	dir := t.TempDir()
	x, y, m := filepath.Join(dir, "x"), filepath.Join(dir, "y"), filepath.Join(dir, "m")
	keys, press := io.Pipe()
	s, _ := newSession(t, responderProgram, keys, "-ld", y, "-re", x, "-m", m, "-interactive")
	done := make(chan error)
	go func() {
		_, err := s.channel.exchange(patient(t), descriptorsOf(t, responderProgram, 1))
		done <- err
	}()
	_, err := press.Write([]byte("\n"))
	require.NoError(t, err)
	require.ErrorContains(t, <-done, x, "Enter was pressed, and the file is not there")

	require.NoError(t, descriptor.WriteFile(x, encode(t, descriptor.Connection, "binary")))
	go func() {
		_, err := s.channel.exchange(patient(t), descriptorsOf(t, responderProgram, 1))
		done <- errors.Join(err, s.channel.peerDone(patient(t)))
	}()
	_, err = press.Write([]byte("\n\n"))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(s.channel.close(true), press.Close()))
	for range s.channel.(*files).keys.lines {
	}
	require.NoFileExists(t, y)
	require.NoFileExists(t, m)
	require.FileExists(t, x, "the peer's")
}

// A file that is copied slowly is taken when it is whole.
func TestFileInTheMaking(t *testing.T) { synctest.Test(t, fileInTheMaking) }

// In virtual time, the file stays as it is for less than makes it wrong.
func fileInTheMaking(t *testing.T) {
	dir := t.TempDir()
	a, _ := filesPair(t, dir)
	path := filepath.Join(dir, "y")
	whole := []byte(descriptor.Armor(encode(t, descriptor.Connection, "c")))
	require.NoError(t, os.WriteFile(path, whole[:50], 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m"), encode(t, descriptor.MemoryMap, "m"), 0o600))
	done := make(chan error)
	go func() {
		_, err := a.exchange(patient(t), descriptorsOf(t, requesterProgram, 1))
		done <- err
	}()
	time.Sleep(settleTime - pollInterval)
	require.FileExists(t, filepath.Join(dir, "x"))
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	require.NoError(t, <-done)
	require.NoError(t, a.close(false))
}

// Two programs with the same part in one folder.
func TestSameFolderTwice(t *testing.T) {
	dir := t.TempDir()
	a, _ := dirPair(t, dir)
	done := make(chan error)
	go func() {
		_, err := a.exchange(patient(t), descriptorsOf(t, requesterProgram, 1))
		done <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "asker.json")); return err == nil }, 5*time.Minute, time.Millisecond)
	again, b := dirPair(t, dir)
	swap(t, again, b, 1)
	require.ErrorContains(t, <-done, "another asker uses the folder "+dir)
	require.NoError(t, errors.Join(a.close(false), again.close(true), b.peerDone(patient(t)), b.close(true)))
	assertEmpty(t, dir)
}

// The user's own folder, in a place where anybody can make one.
func TestFolderOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "verbena")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	s, _ := newSession(t, requesterProgram, nil)
	d := newDir(s, dir, true)
	_, err := d.exchange(patient(t), Descriptors{})
	require.ErrorContains(t, err, "only its user")
	require.NoError(t, d.close(false))
	assertEmpty(t, dir)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	_, err = d.exchange(patient(t), Descriptors{})
	require.ErrorContains(t, err, "only its user")
}

// Other programs that connect do not keep the requester out.
func TestStrangersOnTCP(t *testing.T) {
	address := freeAddress(t)
	a, b := tcpPair(t, address)
	done := make(chan error)
	go func() {
		_, err := b.exchange(patient(t), descriptorsOf(t, responderProgram, 1))
		done <- err
	}()
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\n", "{}\n", strings.Repeat("x", 2*maxMessage), `{"version":1,"program":"other"}` + "\n"} {
		var conn net.Conn
		require.Eventually(t, func() (ok bool) {
			var err error
			conn, err = net.Dial("tcp", address)
			return err == nil
		}, 5*time.Minute, time.Millisecond)
		_, _ = conn.Write([]byte(text))
		_, _ = io.Copy(io.Discard, conn) // until it is rejected
		require.NoError(t, conn.Close())
	}
	_, err := a.exchange(patient(t), descriptorsOf(t, requesterProgram, 1))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, errors.Join(a.close(true), b.close(true)))
}

func TestDecodeMessage(t *testing.T) {
	good := newMessage(requesterProgram, descriptorsOf(t, requesterProgram, 2))
	good.Run, good.Outcome = "run", failed
	b, err := good.encode()
	require.NoError(t, err)
	got, err := decodeMessage(b, "asker")
	require.NoError(t, err)
	assert.Equal(t, good, got)

	for _, bad := range []string{
		"", "null", "[]", "7", `"x"`, "{", string(b[:len(b)/2]), string(b) + string(b), string(b) + "x",
		`{"version":2,"program":"asker"}`, `{"version":1}`, `{"version":1,"program":"answerer"}`,
		`{"version":1,"program":"asker","more":1}`, `{"version":1,"program":"asker","outcome":"perhaps"}`,
		`{"version":1,"program":"asker","memory":"?"}`, `{"version":1,"program":"asker"` + strings.Repeat(" ", maxMessage) + "}",
	} {
		_, err := decodeMessage([]byte(bad), "asker")
		require.ErrorIs(t, err, errMessage, "%.60q", bad)
	}

	big := newMessage(requesterProgram, Descriptors{Connections: [][]byte{make([]byte, maxMessage)}})
	_, err = big.encode()
	require.Error(t, err)
}

func FuzzDecodeMessage(f *testing.F) {
	for _, m := range []message{
		newMessage(requesterProgram, Descriptors{Connections: [][]byte{{1}, {2, 3}}, Memory: []byte("m")}),
		{Version: messageVersion, Program: "asker", Run: "a", Seen: "b", Outcome: succeeded},
	} {
		b, err := m.encode()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b, "asker")
		if err != nil {
			require.ErrorIs(t, err, errMessage)
			return
		}
		again, err := json.Marshal(&m)
		require.NoError(t, err)
		same, err := decodeMessage(again, "asker")
		require.NoError(t, err)
		assert.Equal(t, canonicalMessage(m), canonicalMessage(same))
	})
}

// canonicalMessage makes empty and absent lists the same, as JSON does.
func canonicalMessage(m message) message {
	if len(m.Connections) == 0 {
		m.Connections = nil
	}
	if len(m.Memory) == 0 {
		m.Memory = nil
	}
	return m
}

// The peer has less time to connect where both programs have just been heard.
func TestConnectTimeoutByWay(t *testing.T) {
	for way, c := range map[string]struct {
		args []string
		want time.Duration
	}{
		"dir":   {[]string{"-oob", "dir:" + t.TempDir()}, defaultConnectTimeout},
		"tcp":   {[]string{"-oob", "tcp:127.0.0.1:1"}, defaultConnectTimeout},
		"stdio": {[]string{"-oob", "stdio"}, byHandConnectTimeout},
		"files": {[]string{"-ld", "a", "-re", "b"}, byHandConnectTimeout},
		"given": {[]string{"-oob", "stdio", "-connect-timeout", "3s"}, 3 * time.Second},
	} {
		s, err := parse(Program{Name: "sender", Role: Requester, Peer: "receiver"}, c.args, stdio{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
		require.NoError(t, err, way)
		assert.Equal(t, c.want, s.ConnectTimeout, way)
	}
}
