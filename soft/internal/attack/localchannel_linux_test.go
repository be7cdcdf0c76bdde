package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket/lingertest"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// These belong to the protocol of package local, which an attacker of another user cannot speak.
const (
	localNamePrefix    = "@verbena/local/"
	localRequestPrefix = "verbena local 7"
	ringLen            = 4096 + 1<<20
	firstRecord        = 4096 // in a ring
	kindReference      = 3    // a record whose payload is in exported memory
	referenceLen       = 16
	longestPayload     = 64 << 10
)

// localChannel is the attacker's end of shared memory with a victim's device.
type localChannel struct {
	conn   *net.UnixConn
	memory []byte        // the ring that the attacker, who has dialled, writes, and that of the victim
	tail   int           // of the attacker's records
	mapped atomic.Uint32 // number of the memory that the victim mapped last
	pings  uint32
	pongs  chan uint32
}

func localName(a local.Address) *net.UnixAddr {
	return &net.UnixAddr{Name: localNamePrefix + a.String(), Net: "unixpacket"}
}

// shardOf returns the address of a queue pair's shard.
func shardOf(device netip.AddrPort, qpn uint32) local.Address {
	return local.Address{Device: device, Shard: int(qpn & 15)}
}

// dialFirstShard connects to a device that has one shard, whose slot only its queue pair numbers tell.
func dialFirstShard(device netip.AddrPort) (conn *net.UnixConn, err error) {
	for slot := range uint32(link.Slots) {
		if conn, err = net.DialUnix("unixpacket", nil, localName(shardOf(device, slot))); err == nil {
			break
		}
	}
	return conn, err
}

// takeName listens under the name of a device, and closes all connections.
func takeName(a local.Address) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", localName(a))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l, nil
}

// openChannel opens a channel to a device, and pretends to be another device.
func openChannel(from, to local.Address) (*localChannel, error) {
	conn, err := net.DialUnix("unixpacket", nil, localName(to))
	if err != nil {
		return nil, err
	}
	n := &localChannel{conn: conn, pongs: make(chan uint32, 16)}
	if err := n.handshake(from, to); err != nil {
		n.close()
		return nil, err
	}
	go n.serve()
	return n, nil
}

func (n *localChannel) handshake(from, to local.Address) error {
	_ = n.conn.SetDeadline(time.Now().Add(hangTimeout))
	if _, err := fmt.Fprintf(n.conn, "%s %v %v", localRequestPrefix, from, to); err != nil {
		return err
	}
	b, rights := make([]byte, 256), make([]byte, unix.CmsgSpace(4))
	m, r, _, _, err := n.conn.ReadMsgUnix(b, rights)
	if err != nil {
		return err
	}
	if string(b[:m]) != "taken" {
		return fmt.Errorf("%w: %q", errRefused, b[:m])
	}
	messages, err := unix.ParseSocketControlMessage(rights[:r])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fds[0]) }()
	n.memory, err = unix.Mmap(fds[0], 0, 2*ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

var errRefused = errors.New("the victim refused the channel")

// serve replies to the victim's pings, and receives its replies.
func (n *localChannel) serve() {
	defer close(n.pongs)
	b := make([]byte, 256)
	for {
		m, err := n.conn.Read(b)
		if err != nil || m == 0 {
			return
		}
		switch number := binary.LittleEndian.Uint32(b[1:]); b[0] {
		case 'p':
			b[0] = 'q'
			_, _ = n.conn.Write(b[:m])
		case 'q':
			n.pongs <- number
		case 'a':
			n.mapped.Store(number)
		}
	}
}

// sendMessage sends a message with a number, and optionally files.
func (n *localChannel) sendMessage(kind byte, number uint32, files ...int) error {
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	_, _, err := n.conn.WriteMsgUnix(binary.LittleEndian.AppendUint32([]byte{kind}, number), rights, nil)
	return err
}

// export exports memory to the victim, and reports whether the victim has mapped it.
func (n *localChannel) export(number uint32, fd int) (bool, error) {
	n.pings++
	if err := errors.Join(n.sendMessage('s', number, fd), n.sendMessage('p', n.pings)); err != nil {
		return false, err
	}
	if answer, ok := <-n.pongs; !ok || answer != n.pings {
		return false, errors.New("the victim has ended the channel")
	}
	return n.mapped.Load() == number, nil
}

// write sends a packet whose payload is in exported memory.
func (n *localChannel) write(p *wire.Packet, number uint32, offset uint64, length int) error {
	at, headers := firstRecord+n.tail, p.Opcode.HeaderLen()
	begin := (16 + headers + 15) &^ 15
	size := (begin + referenceLen + 63) &^ 63
	record := n.memory[at:]
	p.PutHeaders(record[16:begin])
	binary.NativeEndian.PutUint64(record[8:], referenceLen)
	binary.LittleEndian.PutUint32(record[begin:], number)
	binary.LittleEndian.PutUint32(record[begin+4:], uint32(length))
	binary.LittleEndian.PutUint64(record[begin+8:], offset)
	binary.NativeEndian.PutUint64(record[size:], 0)
	atomic.StoreUint64(wordOf(record), uint64(size)|kindReference<<32|uint64(headers)<<40|targetMTU<<48)
	n.tail += size
	return n.sendMessage('w', 0)
}

// received reports whether the victim has sent a packet.
func (n *localChannel) received() bool {
	return binary.NativeEndian.Uint64(n.memory[ringLen+firstRecord:]) != 0
}

func (n *localChannel) close() {
	_ = n.conn.Close()
	if n.memory != nil {
		_ = unix.Munmap(n.memory)
	}
}

// impersonate opens channels to the device of the right busy end, as its peer, until that device
// sends packets to the attacker.
func impersonate(a *attacker) error {
	left, right := &a.ends[busy], &a.ends[2+busy]
	from, to := shardOf(left.Addr, left.QPN), shardOf(right.Addr, right.QPN)
	name, err := takeName(from)
	if err != nil {
		return err
	}
	defer func() { _ = name.Close() }()
	for !a.stopped() {
		a.others++
		n, err := openChannel(from, to)
		for err == nil && !a.stopped() {
			if n.received() {
				a.achieved(impersonated, "%v sent a packet for %v to another process", to, from)
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			n.close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// sealedFile makes a memory file that can be exported to victims.
func sealedFile(length int64, allocated bool) (fd int, err error) {
	if fd, err = unix.MemfdCreate("memory", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC); err != nil {
		return fd, err
	}
	if err = unix.Ftruncate(fd, length); err == nil && allocated {
		err = unix.Fallocate(fd, 0, 0, length)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	}
	return fd, err
}

// fillMemory is a peer that writes from memory without allocated pages: reading it would allocate
// them. Then it writes from allocated memory, which the victim accepts.
func fillMemory(a *attacker) error {
	s, t, err := a.target("")
	if err != nil {
		return a.unlessStopped(err)
	}
	from, to := shardOf(s.from, attackerQPN), shardOf(t.Addr, t.QPN)
	name, err := takeName(from)
	if err != nil {
		return err
	}
	defer func() { _ = name.Close() }()
	n, err := openChannel(from, to)
	for errors.Is(err, errRefused) && !a.stopped() { // the victim is dialling the attacker
		time.Sleep(time.Millisecond)
		n, err = openChannel(from, to)
	}
	if err != nil {
		return a.unlessStopped(fmt.Errorf("open shared memory with the victim: %w", err))
	}
	defer n.close()
	psn := uint32(attackerPSN)
	write := func(number uint32, offset uint64) error {
		p := wire.Packet{Opcode: wire.RCWriteOnly, DestQP: t.QPN, PSN: psn, PKey: 0xffff, AckReq: true, RETH: wire.RETH{VA: t.Addr64, RKey: t.RKey, Length: longestPayload}}
		psn = wire.PSNAdd(psn, longestPayload/targetMTU)
		a.others++
		return n.write(&p, number, offset, longestPayload)
	}
	sparse, err := sealedFile(1<<30, false)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(sparse) }()
	switch mapped, err := n.export(1, sparse); {
	case err != nil:
		return err
	case mapped:
		for i := range uint64(256) {
			if err := write(1, i*longestPayload); err != nil {
				return err
			}
		}
	}
	full, err := sealedFile(longestPayload, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(full) }()
	switch mapped, err := n.export(2, full); {
	case err != nil:
		return err
	case !mapped:
		return errors.New("the victim maps no memory at all")
	}
	if err := write(2, 0); err != nil {
		return err
	}
	for !a.stopped() {
		var stat unix.Stat_t
		if err := unix.Fstat(sparse, &stat); err != nil {
			return err
		}
		if stat.Blocks > 0 {
			a.achieved(filled, "%d bytes, which the attacker has not allocated", stat.Blocks*512)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// manyLingering returns many sockets that take long to close. The function release makes them close
// at once.
func manyLingering() (files []*os.File, release func(), err error) {
	var releases []func()
	for len(files) < 40 && err == nil {
		var file *os.File
		var end func()
		if file, end, err = lingertest.Open(); err == nil {
			files, releases = append(files, file), append(releases, end)
		}
	}
	return files, func() {
		for _, end := range releases {
			end()
		}
	}, err
}

// lingerInRegistry sends files that take long to close to the entry by which processes of the
// machine find a listener, and lets one dial the listener meanwhile.
func lingerInRegistry(a *attacker) error {
	files, release, err := manyLingering()
	defer release()
	if err != nil {
		return err
	}
	end := &a.ends[2+idle]
	entry := "@verbena/rdma_cm/tcp/" + netip.AddrPortFrom(end.Addr.Addr(), end.Listener).String()
	const ahead = 25 // connections that keep the victim from closing the next one at once
	for _, file := range files {
		var socket int
		for range ahead + 1 {
			if socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
				return err
			}
			defer func() { _ = unix.Close(socket) }()
			_ = unix.Connect(socket, &unix.SockaddrUnix{Name: entry}) // it fails if the victim takes no more
		}
		if unix.Sendmsg(socket, []byte("x"), unix.UnixRights(int(file.Fd())), nil, unix.MSG_NOSIGNAL) == nil {
			a.others++
		}
		closed := make(chan struct{})
		go func() { // the last holder to close it waits
			defer close(closed)
			_ = file.Close()
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Millisecond):
		}
	}
	for range 3 {
		if _, err := a.ask(message{Kind: "lookup"}); err != nil {
			return a.unlessStopped(err)
		}
	}
	return nil
}

// lingerFiles sends files that take long to close to a device, and lets the victim close the
// device.
func lingerFiles(a *attacker) error {
	files, release, err := manyLingering()
	defer release()
	if err != nil {
		return err
	}
	answer, err := a.ask(message{Kind: "device"})
	if err != nil || answer.Text != "" {
		return fmt.Errorf("have a device opened: %w: %s", err, answer.Text)
	}
	for _, file := range files {
		conn, err := dialFirstShard(answer.Addresses[0])
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, _, err = conn.WriteMsgUnix([]byte("hello"), unix.UnixRights(int(file.Fd())), nil)
		go func() { _ = file.Close() }() // the last holder to close it waits
		if err == nil {
			a.others++
		}
	}
	if answer, err = a.ask(message{Kind: "close"}); err != nil || answer.Text != "" {
		return fmt.Errorf("have the device closed: %w: %s", err, answer.Text)
	}
	return nil
}
