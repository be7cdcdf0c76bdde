package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

var (
	goodRequest    = request{Magic: magic, Path: pathID{ID: [16]byte{1}, Device: 3}, Dials: 4, Epoch: 1}
	goodAcceptance = rcAcceptance{Magic: magic, Epoch: 1, Device: 1, Devices: 2, Addrs: [maxDevices]address{
		{netip.MustParseAddr("192.0.2.1").As16(), 7600}, {netip.MustParseAddr("2001:db8::1").As16(), 7601},
	}}
	goodSRD     = acceptance{goodAcceptance, [maxDevices]uint32{5, 5}}
	goodMessage = message{Request: goodRequest, From: goodAcceptance.Addrs[0], QPN: 5, Data: 6, Accept: goodSRD}
)

func decodeRequest(b []byte) (r request, err error) {
	err = decode(b, &r)
	return r, err
}

func decodeAcceptance(b []byte) (a rcAcceptance, err error) {
	err = decode(b, &a)
	return a, err
}

func goodDirectory() []byte {
	b := make([]byte, headLen+2*recordLen)
	writeDirectory(b, []*record{
		{Name: [64]byte{'a'}, Size: 1, Perm: uint8(mmap.RemoteRead), Devices: 2, Keys: [maxDevices]key{{1, 2}, {3, 4}}},
		{Name: [64]byte{'b'}, Size: 1 << 40, Perm: uint8(remotePermissions), Devices: 2, Keys: [maxDevices]key{{1 << 20, 5}, {1 << 30, 6}}},
	})
	return b
}

// Whatever arrives, decoders neither panic nor accept what their encoders do not write.
func FuzzDecode(f *testing.F) {
	f.Add(encode(goodRequest))
	f.Add(encode(goodAcceptance))
	f.Add(encode(goodMessage))
	f.Add(goodDirectory())
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(v any, err error) {
			if err == nil {
				n := max(len(b), len(encode(v)))
				require.Equal(t, append(bytes.Clone(b), make([]byte, n-len(b))...), append(encode(v), make([]byte, n-len(encode(v)))...))
			}
		}
		r, err := decodeRequest(b)
		same(r, err)
		a, err := decodeAcceptance(b)
		same(a, err)
		for kind := range uint32(kindBye + 2) {
			m, err := decodeMessage(b, kind)
			same(m, err)
			_ = m.Accept.check()
		}
		if len(b) < headLen {
			return
		}
		binary.BigEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:])) // of what is there
		records, need, err := readDirectory(b, 2)
		if err != nil || need > len(b) {
			require.Nil(t, records)
			return
		}
		var pointers []*record
		for i := range records {
			pointers = append(pointers, &records[i])
		}
		again := make([]byte, need)
		writeDirectory(again, pointers)
		require.Equal(t, b[:need], again)
	})
}

// Messages that are cut or longer, and each wrong value, are refused.
func TestStrict(t *testing.T) {
	_, err := decodeRequest(append(encode(goodRequest), 0, 0))
	require.NoError(t, err)
	_, err = decodeRequest(append(encode(goodRequest), 0, 1))
	require.ErrorIs(t, err, ErrProtocol)
	_, err = decodeRequest(encode(goodRequest)[:20])
	require.ErrorIs(t, err, ErrProtocol)
	for _, change := range []func(r *request){
		func(r *request) { r.Magic++ }, func(r *request) { r.Path.ID[0] = 0 }, func(r *request) { r.Path.Device = maxDevices }, func(r *request) { r.Zero[0] = 1 },
		func(r *request) { r.Epoch = 0 },
	} {
		r := goodRequest
		change(&r)
		_, err = decodeRequest(encode(r))
		require.ErrorIs(t, err, ErrProtocol)
	}

	_, err = decodeAcceptance(encode(goodAcceptance))
	require.NoError(t, err)
	_, err = decodeAcceptance(encode(goodAcceptance)[:binary.Size(goodAcceptance)-1])
	require.ErrorIs(t, err, ErrProtocol)
	for _, change := range []func(a *rcAcceptance){
		func(a *rcAcceptance) { a.Magic++ }, func(a *rcAcceptance) { a.Epoch = 0 }, func(a *rcAcceptance) { a.Device = 2 }, func(a *rcAcceptance) { a.Zero[0] = 1 }, func(a *rcAcceptance) { a.Known = 2 },
		func(a *rcAcceptance) { a.Devices, a.Device = 0, 0 }, func(a *rcAcceptance) { a.Devices = maxDevices + 1 }, func(a *rcAcceptance) { a.Addrs[1].Port = 0 },
		func(a *rcAcceptance) { a.Addrs[0].IP = [16]byte{} }, func(a *rcAcceptance) { a.Addrs[2].Port = 1 }, func(a *rcAcceptance) { a.Directory.Addr = 1<<64 - 1 },
	} {
		a := goodSRD
		change(&a.rcAcceptance)
		_, err = decodeAcceptance(encode(a.rcAcceptance))
		require.ErrorIs(t, err, ErrProtocol, "%+v", a)
		require.ErrorIs(t, a.check(), ErrProtocol, "%+v", a)
	}
	require.NoError(t, goodSRD.check())
	for i := range goodSRD.QPNs { // there are two
		a := goodSRD
		a.QPNs[i] ^= 5
		require.ErrorIs(t, a.check(), ErrProtocol)
	}

	records, _, err := readDirectory(goodDirectory(), 2)
	require.NoError(t, err)
	require.Len(t, records, 2)
	records, need, err := readDirectory(goodDirectory()[:headLen+recordLen], 2)
	require.NoError(t, err)
	require.Nil(t, records)
	require.Equal(t, headLen+2*recordLen, need)
	torn := goodDirectory()
	torn[20]++
	_, _, err = readDirectory(torn, 2)
	require.ErrorIs(t, err, errTorn)
	_, _, err = readDirectory(goodDirectory(), 1)
	require.ErrorIs(t, err, ErrProtocol)
	for _, change := range []func(r *record){
		func(r *record) { r.Name[0] = 'a' }, func(r *record) { r.Size = 0 }, func(r *record) { r.Size = 1 << 63 }, func(r *record) { r.Perm = 1 },
		func(r *record) { r.Devices = 3 }, func(r *record) { r.Zero[0] = 1 }, func(r *record) { r.Keys[2].Key = 1 }, func(r *record) { r.Keys[1].Addr = 1<<64 - 1 },
	} {
		all, _, err := readDirectory(goodDirectory(), 2)
		require.NoError(t, err)
		change(&all[1])
		b := make([]byte, headLen+2*recordLen)
		writeDirectory(b, []*record{&all[0], &all[1]})
		_, _, err = readDirectory(b, 2)
		require.ErrorIs(t, err, ErrProtocol, "%+v", all[1])
	}
	b := make([]byte, headLen)
	b[4] = 0xff
	_, _, err = readDirectory(b, 2)
	require.ErrorIs(t, err, ErrProtocol)
}

// stranger is a program that is no agent.
type stranger struct {
	*rdma.Connections
	engine *pe.Engine
	memory *mmap.Map
	ended  chan error
}

// strange starts one; begin runs when its context is Running.
func strange(t *testing.T, begin func(s *stranger)) *stranger {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	s := &stranger{engine: pe.New(pe.Config{}), ended: make(chan error, 8)}
	s.Connections, err = rdma.New(dev, rdma.Config{Engine: s.engine, MaxConnections: 4, Permissions: mmap.RemoteRead})
	require.NoError(t, err)
	s.memory, err = mmap.Alloc(dev, directoryLen, mmap.LocalReadWrite|mmap.RemoteRead)
	require.NoError(t, err)
	s.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Failed:
			_ = conn.Close()
		case rdma.Closed:
			s.ended <- conn.Err()
		}
	})
	s.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			begin(s)
		}
	})
	require.NoError(t, s.Start())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = s.engine.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		require.NoError(t, s.engine.Close())
		require.NoError(t, s.Close())
		require.NoError(t, s.memory.Close())
		require.NoError(t, dev.Close())
	})
	return s
}

// Who dials and breaks the protocol is refused, and counted; others are served.
func TestHostile(t *testing.T) {
	far := open(t, 1)
	register(t, far, "blocks", 100)
	for name, private := range map[string][]byte{"no protocol": []byte("hello"), "another version": {0x56, 0x54, 0x47, 2}, "nothing": nil} {
		t.Run(name, func(t *testing.T) {
			before := far.Counters().Refused
			s := strange(t, func(s *stranger) {
				_, err := s.Dial(far.Addrs()[0].String(), rdma.DialConfig{PrivateData: private})
				s.Fail(err)
			})
			require.ErrorIs(t, <-s.ended, rdma.ErrRejected)
			require.Equal(t, before+1, far.Counters().Refused)
		})
	}
	dial(t, open(t, 1), far, "blocks")
}

// Who knows all that an agent tells those who dial it cannot take its place at another one.
func TestStolenPlace(t *testing.T) {
	near, far := open(t, 1), open(t, 1)
	register(t, far, "blocks", 100)
	mine := register(t, near, "", 100)
	remote := dial(t, near, far, "blocks")
	told := make(chan []byte, 1)
	s := strange(t, func(s *stranger) {
		_, err := s.Dial(near.Addrs()[0].String(), rdma.DialConfig{PrivateData: encode(goodRequest), OnResponse: func(conn *rdma.Connection) {
			told <- bytes.Clone(conn.AcceptData())
			_ = conn.Close()
		}})
		s.Fail(err)
	})
	data := <-told
	<-s.ended
	acc, err := decodeAcceptance(data)
	require.NoError(t, err)
	guesses := []pathID{{}} // a number that counts, after what is told
	binary.BigEndian.PutUint64(guesses[0].ID[:], acc.Epoch)
	binary.BigEndian.PutUint32(guesses[0].ID[8:], 1)
	for i := range len(data) - 16 {
		guesses = append(guesses, pathID{ID: [16]byte(data[i:])})
	}
	ready := make(chan struct{})
	for _, guess := range guesses {
		require.NoError(t, s.engine.Do(func() {
			_, err := s.Dial(far.Addrs()[0].String(), rdma.DialConfig{PrivateData: encode(request{Magic: magic, Path: guess, Dials: 1<<32 - 1, Epoch: 1}), OnResponse: func(conn *rdma.Connection) {
				ready <- struct{}{}
				_ = conn.Close()
			}})
			s.Fail(err)
		}))
		select {
		case <-ready:
			<-s.ended
		case <-s.ended: // an ID of zeroes is refused
		}
	}
	var b Batch
	b.Read(remote, 0, mine.Bytes())
	require.NoError(t, submit(t, near, &b).Wait(testContext(t)))
	require.EqualValues(t, 1, near.Counters().Dials)
}

// An end that closes its connections and dials again at once does no harm: they may have ended before the agent
// closes them.
func TestDialsAgainAtOnce(t *testing.T) {
	far := open(t, 1)
	register(t, far, "blocks", 100)
	who, done := goodRequest, make(chan struct{})
	var dialAgain func(s *stranger)
	dialAgain = func(s *stranger) {
		who.Dials++
		_, err := s.Dial(far.Addrs()[0].String(), rdma.DialConfig{PrivateData: encode(who), OnResponse: func(conn *rdma.Connection) {
			s.Fail(conn.Established())
			if _ = conn.Close(); who.Dials < 1000 {
				dialAgain(s)
			} else {
				close(done)
			}
		}})
		if err != nil { // no place is free
			s.Fail(s.engine.Do(func() { dialAgain(s) }))
		}
	}
	s := strange(t, dialAgain)
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-s.ended:
		}
	}
	dial(t, open(t, 1), far, "blocks")
}

// A message that is no note takes no receive away.
func TestMessageThatIsNoNote(t *testing.T) {
	far := open(t, 1)
	for i := range 3 {
		s := strange(t, func(s *stranger) {
			pool, err := s.Pool(1, func(t *rdma.Task) { _ = t.Free() }, func(t *rdma.Task, _ error) { _ = t.Free() })
			s.Fail(err)
			_, err = s.Dial(far.Addrs()[0].String(), rdma.DialConfig{PrivateData: encode(goodRequest), OnResponse: func(conn *rdma.Connection) {
				s.Fail(conn.Established())
				task, err := pool.Send(conn, bufinv.Source(s.memory, 0, 1))
				s.Fail(pe.SubmitOrFree(task, err))
			}})
			s.Fail(err)
		})
		<-s.ended
		require.Eventually(t, func() bool { return far.Counters().Refused == uint64(i+1) }, time.Minute, time.Millisecond)
	}
}

// An agent without a connection left takes those who dial it when it has one.
func TestFull(t *testing.T) { overBoth(t, testFull) }

func testFull(t *testing.T, open opener) {
	far := open(t, 1, func(c *Config) { c.MaxConnections = 1 })
	register(t, far, "blocks", 100)
	first := dial(t, open(t, 1), far, "blocks").Peer()
	late := open(t, 1, func(c *Config) { c.DialTimeout = 3 * time.Second })
	_, err := late.Dial(testContext(t), far.Addrs()[0].String())
	require.ErrorIs(t, err, rdma.ErrRejected)
	require.ErrorContains(t, err, `which says "no connection left for this host; see Config.MaxConnections"`)
	second := make(chan error)
	near := open(t, 1, func(c *Config) { c.DialTimeout = time.Minute })
	go func() {
		_, err := near.Dial(testContext(t), far.Addrs()[0].String())
		second <- err
	}()
	require.Eventually(t, func() bool { return near.Counters().Dials > 0 }, time.Minute, time.Millisecond)
	first.Close()
	require.NoError(t, <-second)
}

// What accepts and is no agent, or lies about its directory, is refused.
func TestHostileListener(t *testing.T) {
	near := open(t, 1)
	for name, accept := range map[string]func(s *stranger) []byte{
		"another protocol": func(*stranger) []byte { return []byte("hello") },
		"a directory that changes all the time": func(s *stranger) []byte {
			s.memory.Bytes()[0] = 1
			return s.acceptance()
		},
		"a directory of other devices": func(s *stranger) []byte {
			copy(s.memory.Bytes(), goodDirectory())
			return s.acceptance()
		},
		"no directory": func(s *stranger) []byte {
			a := goodAcceptance
			a.Device, a.Devices, a.Addrs[1] = 0, 1, address{}
			return encode(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr := make(chan string, 1)
			strange(t, func(s *stranger) {
				l, err := s.Listen("127.0.0.1:0", rdma.ListenConfig{PrivateData: accept(s)})
				s.Fail(err)
				addr <- l.Addr().String()
			})
			_, err := near.Dial(testContext(t), <-addr)
			switch name {
			case "no directory":
				require.ErrorIs(t, err, rdma.ErrRemoteAccess)
			case "a directory that changes all the time":
				require.ErrorIs(t, err, errTorn)
			default:
				require.ErrorIs(t, err, ErrProtocol)
			}
		})
	}
	require.EqualValues(t, 1, near.Counters().Refused)
}

// acceptance is that of an agent with one device.
func (s *stranger) acceptance() []byte {
	rkey, err := s.memory.ExportKey(s.PD())
	s.Fail(err)
	a := goodAcceptance
	a.Device, a.Devices, a.Addrs[1], a.Directory = 0, 1, address{}, key{s.memory.Addr(), rkey}
	return encode(a)
}
