package perftest

import (
	"bytes"
	"io"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is what ib_read_bw 6.06 (perftest 4.5+0.17) on rxe has said.
const recorded = "0000:0080:000016:22e735:0000068b:00005574bae1b000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\x00"

func TestRecordedKeys(t *testing.T) {
	k, err := ParseKeys([]byte(recorded))
	require.NoError(t, err)
	assert.Equal(t, &Keys{Reads: 0x80, QPN: 0x16, PSN: 0x22e735, RKey: 0x68b, Addr: 0x5574bae1b000, GID: [16]byte{10: 0xff, 0xff, 10, 0, 0, 1}}, k)
	assert.Equal(t, recorded, string(k.Append(nil)))
}

func TestWrongKeys(t *testing.T) {
	for _, text := range []string{
		"", "x", recorded[:KeysLen-1], recorded + "\x00",
		strings.Replace(recorded, "0a:00", "0a.00", 1),
		strings.Replace(recorded, "22e735", "22E735", 1),
		strings.Replace(recorded, "22e735", "22 735", 1),
		strings.Replace(recorded, "22e735", "+2e735", 1),
		strings.Replace(recorded, "0000:", "0000;", 1),
		strings.Replace(recorded, ":\x00", "::", 1),
	} {
		_, err := ParseKeys([]byte(text))
		assert.ErrorIs(t, err, ErrProtocol, "%q", text)
	}
}

func TestKeysRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Keys{
			LID: rapid.Uint16().Draw(t, "LID"), Reads: rapid.Uint16().Draw(t, "reads"), QPN: rapid.Uint32Max(1<<24-1).Draw(t, "QPN"),
			PSN: rapid.Uint32Max(1<<24-1).Draw(t, "PSN"), RKey: rapid.Uint32().Draw(t, "key"), Addr: rapid.Uint64().Draw(t, "address"),
			SRQN: rapid.Uint32().Draw(t, "SRQN"), GID: [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "GID")),
		}
		b := k.Append(nil)
		require.Len(t, b, KeysLen)
		again, err := ParseKeys(b)
		require.NoError(t, err)
		require.Equal(t, &k, again)
	})
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(recorded))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := ParseKeys(b); err == nil {
			require.Equal(t, b, k.Append(nil))
		}
	})
}

// tests are those that perftest has a program for.
func tests() (list []plan.Test) {
	for _, t := range plan.Tests() {
		if Check(t) == nil {
			list = append(list, t)
		}
	}
	return list
}

// script is what an end of the recordings says, in its turn.
func script(t plan.Test, peerKeys string) string {
	s := "6.06" + strings.Repeat("\x00", 12) + "\x00\x00\x10\x00" + "\x00\x00\x00\x40" + "3\x00"
	switch e, _ := endingOf(t); {
	case e.result: // write_bw, read_bw, atomic_bw
		return s + strings.Repeat(peerKeys, 4) + strings.Repeat("\x00\x00\x00\x00\x00\x00\x00\x40", 5) + peerKeys + "done\x00"
	case e.goodbye: // read_lat, send_bw, send_lat, atomic_lat
		return s + strings.Repeat(peerKeys, 5) + "done\x00"
	}
	return s + strings.Repeat(peerKeys, 4) // write_lat
}

// wire reads what is given, and keeps what is written.
type wire struct {
	io.Reader
	bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error)  { return w.Reader.Read(p) }
func (w *wire) Write(p []byte) (int, error) { return w.Buffer.Write(p) }

// Both roles say, byte for byte, what the recordings have.
func TestRecordedConversations(t *testing.T) {
	keys, err := ParseKeys([]byte(recorded))
	require.NoError(t, err)
	peer := strings.Replace(recorded, "000016:22e735", "000015:de51ec", 1)
	for _, test := range tests() {
		for _, server := range []bool{false, true} {
			w := &wire{Reader: strings.NewReader(script(test, peer))}
			s, err := New(w, test, server)
			require.NoError(t, err)
			got, mtu, err := s.Open(*keys, 1024)
			require.NoError(t, err)
			assert.EqualValues(t, 0x15, got.QPN)
			assert.EqualValues(t, 1024, mtu)
			require.NoError(t, s.Begin())
			require.NoError(t, s.End(Result{Size: 64, Operations: 64, Peak: math.Float64frombits(64), Average: math.Float64frombits(64), Rate: math.Float64frombits(64)}))
			assert.Equal(t, script(test, recorded), w.Buffer.String(), "%v", test)
			n, _ := w.Reader.Read(make([]byte, 1))
			assert.Zero(t, n, "%v: all was read", test)
		}
	}
	require.Len(t, tests(), 10)
	assert.Error(t, Check(plan.Test{Op: plan.WriteImm}))
}

// The two roles understand each other, whoever has the smaller packets.
func TestBothRoles(t *testing.T) {
	for _, test := range tests() {
		a, b := net.Pipe()
		done := make(chan error)
		go func() {
			s, _ := New(b, test, true)
			_, mtu, err := s.Open(Keys{QPN: 2}, 4096)
			assert.EqualValues(t, 512, mtu)
			if err == nil {
				err = s.Begin()
			}
			if err == nil && s.Goodbye() {
				err = s.End(Result{})
			} else if err == nil {
				s.WaitGone()
			}
			done <- err
		}()
		s, err := New(a, test, false)
		require.NoError(t, err)
		_, mtu, err := s.Open(Keys{QPN: 1}, 512)
		require.NoError(t, err)
		assert.EqualValues(t, 512, mtu)
		require.NoError(t, s.Begin())
		require.NoError(t, s.End(Result{}))
		require.NoError(t, a.Close())
		require.NoError(t, <-done)
	}
}

func TestWrongConversations(t *testing.T) {
	good := script(plan.Test{}, recorded)
	for want, said := range map[string]string{
		"has closed the connection": good[:20],
		"version":                   strings.Replace(good, "6.06", "5.92", 1),
		"cache line":                strings.Replace(good, "\x00\x00\x00\x40", "\x00\x00\x00\x80", 1),
		"path MTU":                  strings.Replace(good, "3\x00", "9\x00", 1),
		"not a line with a queue":   strings.Replace(good, "0080", "zzzz", 1),
	} {
		s, err := New(&wire{Reader: strings.NewReader(said)}, plan.Test{}, false)
		require.NoError(t, err)
		_, _, err = s.Open(Keys{}, verbs.MTU(1024))
		assert.ErrorContains(t, err, want)
	}
}
