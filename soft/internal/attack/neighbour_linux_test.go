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

	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Of the protocol of package local, which takes no process that an attacker could be.
const (
	neighbourName     = "@verbena/local/"
	neighbourGreeting = "verbena local 5"
	ringLen           = 4096 + 1<<20
	firstRecord       = 4096 // in a ring
	kindReference     = 3    // a record whose payload lies in memory that was shown
	referenceLen      = 16
	longestPayload    = 64 << 10
)

// neighbour is the attacker's end of shared memory with a victim's device.
type neighbour struct {
	conn    *net.UnixConn
	memory  []byte        // the ring of the attacker's records, and that of the victim's
	tail    int           // of the attacker's records
	shown   atomic.Uint32 // the number of the memory that the victim has mapped last
	pings   uint32
	answers chan uint32
}

func localName(a local.Address) *net.UnixAddr {
	return &net.UnixAddr{Name: neighbourName + a.String(), Net: "unixpacket"}
}

// shardOf is where the shard of a queue pair is found.
func shardOf(device netip.AddrPort, qpn uint32) local.Address {
	return local.Address{Device: device, Shard: int(qpn & 15)}
}

// own takes the name of a device, and answers nobody.
func own(a local.Address) (*net.UnixListener, error) {
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

// join joins the shared memory of a device in the name of another.
func join(from, to local.Address) (*neighbour, error) {
	conn, err := net.DialUnix("unixpacket", nil, localName(to))
	if err != nil {
		return nil, err
	}
	n := &neighbour{conn: conn, answers: make(chan uint32, 16)}
	if err := n.greet(from, to); err != nil {
		n.leave()
		return nil, err
	}
	go n.answer()
	return n, nil
}

func (n *neighbour) greet(from, to local.Address) error {
	fd, err := unix.MemfdCreate("rings", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, 2*ringLen); err != nil {
		return err
	}
	if n.memory, err = unix.Mmap(fd, 0, 2*ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	_ = n.conn.SetDeadline(time.Now().Add(patience))
	if _, _, err = n.conn.WriteMsgUnix(fmt.Appendf(nil, "%s %v %v", neighbourGreeting, from, to), unix.UnixRights(fd), nil); err != nil {
		return err
	}
	b := make([]byte, 256)
	m, err := n.conn.Read(b)
	if err == nil && string(b[:m]) != "taken" {
		err = errors.New(string(b[:m]))
	}
	return err
}

// answer says that the attacker is there, as often as the victim asks, and takes answers.
func (n *neighbour) answer() {
	defer close(n.answers)
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
			n.answers <- number
		case 'a':
			n.shown.Store(number)
		}
	}
}

// say sends a message with a number and perhaps files.
func (n *neighbour) say(kind byte, number uint32, files ...int) error {
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	_, _, err := n.conn.WriteMsgUnix(binary.LittleEndian.AppendUint32([]byte{kind}, number), rights, nil)
	return err
}

// show gives the victim memory, and reports whether it has mapped it.
func (n *neighbour) show(number uint32, fd int) (bool, error) {
	n.pings++
	if err := errors.Join(n.say('s', number, fd), n.say('p', n.pings)); err != nil {
		return false, err
	}
	if answer, ok := <-n.answers; !ok || answer != n.pings {
		return false, errors.New("the victim has ended the channel")
	}
	return n.shown.Load() == number, nil
}

// write sends a packet whose payload is memory that was shown.
func (n *neighbour) write(p *wire.Packet, number uint32, offset uint64, length int) error {
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
	atomic.StoreUint64(wordOf(record), uint64(size)|kindReference<<32|uint64(headers)<<40)
	n.tail += size
	return n.say('w', 0)
}

// heard reports whether the victim has sent a packet.
func (n *neighbour) heard() bool {
	return binary.NativeEndian.Uint64(n.memory[ringLen+firstRecord:]) != 0
}

func (n *neighbour) leave() {
	_ = n.conn.Close()
	if n.memory != nil {
		_ = unix.Munmap(n.memory)
	}
}

// impersonate joins the device of the right busy end in the name of its peer, until that sends
// packets to the attacker.
func impersonate(a *attacker) error {
	left, right := &a.ends[busy], &a.ends[2+busy]
	from, to := shardOf(left.Addr, left.QPN), shardOf(right.Addr, right.QPN)
	name, err := own(from)
	if err != nil {
		return err
	}
	defer func() { _ = name.Close() }()
	for !a.stopped() {
		a.others++
		n, err := join(from, to)
		for err == nil && !a.stopped() {
			if n.heard() {
				a.achieved(impersonated, "%v sent a packet for %v to another process", to, from)
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			n.leave()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// sealedFile makes a file in memory that may be shown to victims.
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

// fillMemory is a peer that writes from memory that it has not allocated: to read it allocates it.
// Then it writes from memory that it has allocated, which is taken.
func fillMemory(a *attacker) error {
	s, t, err := a.target("")
	if err != nil {
		return a.unlessStopped(err)
	}
	from, to := shardOf(s.from, attackerQPN), shardOf(t.Addr, t.QPN)
	name, err := own(from)
	if err != nil {
		return err
	}
	defer func() { _ = name.Close() }()
	n, err := join(from, to)
	if err != nil {
		return fmt.Errorf("join the victim: %w", err)
	}
	defer n.leave()
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
	switch mapped, err := n.show(1, sparse); {
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
	switch mapped, err := n.show(2, full); {
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

// lingering is a TCP socket that takes an hour to close, unless its reader is closed before: it has
// data that nobody reads.
func lingering() (file *os.File, reader net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	if reader, err = l.Accept(); err != nil {
		return nil, nil, err
	}
	tcp := conn.(*net.TCPConn)
	err = errors.Join(tcp.SetLinger(3600), tcp.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	for err == nil {
		_, err = tcp.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil, err
	}
	file, err = tcp.File()
	return file, reader, errors.Join(err, tcp.Close())
}

// lingerFiles sends files that take long to close to a device, and has it closed.
func lingerFiles(a *attacker) error {
	var files []*os.File
	for range 40 {
		file, reader, err := lingering()
		if err != nil {
			return err
		}
		defer func() { _ = reader.(*net.TCPConn).SetLinger(0); _ = reader.Close() }() // the victim ends
		files = append(files, file)
	}
	answer, err := a.ask(message{Kind: "device"})
	if err != nil || answer.Text != "" {
		return fmt.Errorf("have a device opened: %w: %s", err, answer.Text)
	}
	for _, file := range files {
		conn, err := net.DialUnix("unixpacket", nil, localName(local.Address{Device: answer.Addresses[0]}))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, _, err = conn.WriteMsgUnix([]byte("hello"), unix.UnixRights(int(file.Fd())), nil)
		go func() { _ = file.Close() }() // whoever is the last to close it waits
		if err == nil {
			a.others++
		}
	}
	if answer, err = a.ask(message{Kind: "close"}); err != nil || answer.Text != "" {
		return fmt.Errorf("have the device closed: %w: %s", err, answer.Text)
	}
	return nil
}
