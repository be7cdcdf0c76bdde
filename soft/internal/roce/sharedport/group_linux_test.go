package sharedport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	at       = "127.0.7.20:4791"
	variable = "SHAREDPORT_TEST_AT" // of another process
	forked   = "nowhere"            // for one that only keeps files, as a child that was forked
	forks    = "SHAREDPORT_TEST_FORKS"
)

func TestMain(m *testing.M) {
	switch addr := os.Getenv(variable); addr {
	case "":
	case forked:
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	default:
		other(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// other is another process: it says which slot it has, and leaves when its standard input ends.
func other(addr string) {
	g, slot, err := join(addr, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	sock, err := g.Socket(slot)
	switch {
	case err == nil && slot == 0:
		_, err = link.Listen(link.Config{Addr: netip.MustParseAddrPort(addr), Bound: sock})
	case err == nil:
		err = link.Refuse(sock) // as a filter that a killed process leaves
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	if os.Getenv(forks) != "" {
		if err := fork(g, slot); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(slot)
	_, _ = io.Copy(io.Discard, os.Stdin)
	g.Close()
}

// fork starts a process that keeps the name of a slot, as a child that was forked, for as long as the standard
// input is open.
func fork(g *Group, slot int) error {
	name, err := g.claims[slot].File()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = append(os.Environ(), variable+"="+forked), os.Stdin, os.Stdout, []*os.File{name}
	return cmd.Start()
}

// join joins the group of an address, and claims the lowest free slot from that one on.
func join(addr string, from int) (g *Group, slot int, err error) {
	unlock, err := Lock()
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), JoinTimeout)
	defer cancel()
	if g, err = Join(ctx, link.Config{Addr: netip.MustParseAddrPort(addr)}); err != nil {
		return nil, 0, err
	}
	for slot := from; slot < link.Slots; slot++ {
		if g.Claim(slot) {
			g.TakeRest(slot)
			return g, slot, g.Use(slot, uint16(1000+slot))
		}
	}
	g.Close()
	return nil, 0, errors.New("all slots are taken")
}

type process struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func start(t *testing.T, addr string, attr *syscall.SysProcAttr) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"="+addr)
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd, in, bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

func (p *process) slot(t *testing.T) (slot int) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &slot)
	require.NoError(t, err, "%q", line)
	return slot
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Process.Pid))
		require.NoError(t, err)
		return !slices.ContainsFunc(threads, func(name string) bool {
			stat, _ := os.ReadFile(name)
			return !bytes.Contains(stat, []byte(") T "))
		})
	}, time.Minute, time.Millisecond)
}

func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.in.Close()
	_ = p.Wait()
}

func (p *process) leave(t *testing.T) {
	t.Helper()
	require.NoError(t, p.in.Close())
	require.NoError(t, p.Wait())
}

// member is a device of this process.
type member struct {
	*Group
	slot   int
	socket *link.Socket
}

func open(t *testing.T, addr string, wantSlot int) *member {
	t.Helper()
	return openFrom(t, addr, 0, wantSlot)
}

func openFrom(t *testing.T, addr string, from, wantSlot int) *member {
	t.Helper()
	g, slot, err := join(addr, from)
	require.NoError(t, err)
	require.Equal(t, wantSlot, slot)
	bound, err := g.Socket(slot)
	require.NoError(t, err)
	m := &member{Group: g, slot: slot}
	if g.HasRest(slot) {
		m.socket, err = link.Listen(link.Config{Addr: netip.MustParseAddrPort(addr), Bound: bound})
	} else {
		m.socket, err = link.Listen(link.Config{Addr: netip.AddrPortFrom(netip.MustParseAddrPort(addr).Addr(), 0)})
		require.NoError(t, err)
		err = m.socket.ReceiveFrom(bound)
	}
	require.NoError(t, err)
	t.Cleanup(m.close)
	return m
}

func (m *member) close() {
	m.Close()
	_ = m.socket.Close()
}

// requireSteered checks that packets reach the members by slot, from another program.
func requireSteered(t *testing.T, members ...*member) {
	t.Helper()
	conn, err := net.Dial("udp", members[0].cfg.Addr.String())
	require.NoError(t, err)
	defer conn.Close()
	send := func(qpn ...byte) {
		packet := make([]byte, 64)
		copy(packet[5:], qpn)
		for range 3 {
			_, err = conn.Write(packet)
			require.NoError(t, err)
		}
	}
	for _, m := range members {
		send(0xab, 0, 0xc0|byte(m.slot))
		if m.HasRest(m.slot) {
			send(0, 0, 1)
		}
	}
	for _, m := range members {
		got, want := make(map[byte]int), map[byte]int{0xc0 | byte(m.slot): 3}
		if m.HasRest(m.slot) {
			want[1] = 3
		}
		require.Eventually(t, func() bool {
			list, err := m.socket.Receive()
			require.NoError(t, err)
			for _, d := range list {
				got[d.Data[7]]++
			}
			return len(got) == len(want) && got[0xc0|byte(m.slot)] == 3 && got[1] == want[1]
		}, time.Minute, time.Millisecond, "slot %d: %v", m.slot, got)
	}
}

// The first device at an address gets what is for no slot, whichever slot it has, and the next one takes its
// place.
func TestRest(t *testing.T) {
	first := openFrom(t, at, 3, 3)
	require.True(t, first.HasRest(3))
	requireSteered(t, first)
	second := open(t, at, 0)
	require.False(t, second.HasRest(0))
	requireSteered(t, first, second)
	first.close()
	third := open(t, at, 1)
	require.True(t, third.HasRest(1))
	requireSteered(t, second, third)
	again := openFrom(t, at, 3, 3)
	require.False(t, again.HasRest(3))
	requireSteered(t, again, second, third)
}

// message is a message of connection management for a service, or with a receiver's ID.
func message(attribute mad.Attribute, offset int, value uint32) []byte {
	packet := make([]byte, wire.BTHLen+wire.DETHLen+mad.Len)
	packet[7] = wire.ManagementQPN
	binary.BigEndian.PutUint16(packet[attributeOffset:], uint16(attribute))
	binary.BigEndian.PutUint32(packet[offset:], value)
	return packet
}

// requireMessage checks that a message reaches that member, from another program.
func requireMessage(t *testing.T, at *member, attribute mad.Attribute, offset int, value uint32) {
	t.Helper()
	conn, err := net.Dial("udp", at.cfg.Addr.String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(message(attribute, offset, value))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		list, err := at.socket.Receive()
		require.NoError(t, err)
		for _, d := range list {
			require.EqualValues(t, attribute, binary.BigEndian.Uint16(d.Data[attributeOffset:]))
			require.Equal(t, value, binary.BigEndian.Uint32(d.Data[offset:]))
		}
		return len(list) == 1
	}, time.Minute, time.Millisecond, "slot %d gets no %v with %#x", at.slot, attribute, value)
}

// Requests go to the device that listens, whichever listened first, and all else to the one whose ID it has.
func TestManagement(t *testing.T) {
	const web, mail = 0x01060050, 0x01060019
	request := func(at *member, id uint32) {
		t.Helper()
		requireMessage(t, at, mad.AttrREQ, serviceOffset+4, id)
		requireMessage(t, at, mad.AttrSIDRREQ, serviceOffset+4, id)
	}
	first := open(t, at, 0)
	require.NoError(t, first.Listen(web, 0))
	request(first, web)
	second := open(t, at, 1)
	require.NoError(t, second.Listen(mail, 1))
	request(first, web)
	request(second, mail)
	request(first, 0x01060051)
	for _, m := range []*member{first, second} {
		for _, a := range []mad.Attribute{mad.AttrMRA, mad.AttrREJ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP, mad.AttrLAP, mad.AttrAPR} {
			requireMessage(t, m, a, receiverOffset, 0xabcde0|uint32(m.slot))
		}
		requireMessage(t, m, mad.AttrSIDRREP, requestIDOffset, 0xabcde0|uint32(m.slot))
	}
	requireMessage(t, first, mad.AttrREJ, receiverOffset, 0)
	requireMessage(t, first, mad.AttrREQ, serviceOffset, web) // the upper half

	first.Unlisten(web, 0)
	request(first, web) // for a listener that follows
	require.NoError(t, second.Listen(web, 1))
	request(second, web)
	first.close()
	request(second, 0x01060051)
	third := open(t, at, 0)
	request(third, 0x01060051)
	require.NoError(t, third.Listen(web, 0))
	request(third, web)
	third.close()
	request(second, web)
}

// A process that was killed does not keep its services.
func TestKilledListener(t *testing.T) {
	killed := start(t, at, nil)
	require.Zero(t, killed.slot(t))
	m := open(t, at, 1)
	require.True(t, m.table.listen(80, 0)) // as the other process
	killed.kill()
	require.NoError(t, m.Listen(81, 1))
	requireMessage(t, m, mad.AttrREQ, serviceOffset+4, 82)
	require.NoError(t, m.Listen(80, 1))
	requireMessage(t, m, mad.AttrREQ, serviceOffset+4, 80)
	require.True(t, m.table.listen(83, 0))
	again := open(t, at, 0)
	require.Equal(t, []service{{80, 1}, {81, 1}}, again.services())
	requireMessage(t, again, mad.AttrREQ, serviceOffset+4, 83)
}

// Devices that listen at the same moment are all found, up to the limit, and the system takes a program for
// that many.
func TestManyListeners(t *testing.T) {
	members := []*member{open(t, at, 0), open(t, at, 1), open(t, at, 2)}
	var listening sync.WaitGroup
	for _, m := range members {
		listening.Go(func() {
			for i := range uint32(maxListeners / len(members)) {
				assert.NoError(t, m.Listen(uint32(m.slot)<<16|1+i, m.slot))
			}
		})
	}
	listening.Wait()
	for _, m := range members {
		requireMessage(t, m, mad.AttrREQ, serviceOffset+4, uint32(m.slot)<<16|uint32(maxListeners/len(members)))
	}
	err := members[0].Listen(1, 0)
	require.NoError(t, err, "again")
	err = members[0].Listen(1<<24, 0)
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.ErrorContains(t, err, "480 listeners")
	members[1].Unlisten(1<<16|1, 1)
	require.NoError(t, members[0].Listen(1<<24, 0))
	requireMessage(t, members[0], mad.AttrREQ, serviceOffset+4, 1<<24)
}

// Packets go by slot, whichever processes come and go. A later one may have an old one's slot.
func TestSlots(t *testing.T) {
	for _, addr := range []string{at, "[::1]:4799"} {
		t.Run(addr, func(t *testing.T) {
			first := open(t, addr, 0)
			requireSteered(t, first)
			second := open(t, addr, 1)
			third := open(t, addr, 2)
			requireSteered(t, first, second, third)
			assert.EqualValues(t, 1002, first.Port(2))
			assert.EqualValues(t, 1000, third.Port(0))
			assert.Zero(t, third.Port(3))
			first.close()
			requireSteered(t, second, third)
			again := open(t, addr, 0)
			requireSteered(t, third, again, second)
			assert.True(t, again.Claim(5), "another shard's")
			assert.False(t, third.Claim(5))
			second.close()
			third.close()
			again.close()
			last := open(t, addr, 0)
			assert.Len(t, last.sockets, 1, "a single process needs no others")
			requireSteered(t, last)
		})
	}
}

// Processes that start at the same moment find each other.
func TestSimultaneousStarts(t *testing.T) {
	var processes []*process
	for range 6 {
		processes = append(processes, start(t, at, nil))
	}
	var slots []int
	for _, p := range processes {
		slots = append(slots, p.slot(t))
	}
	slices.Sort(slots)
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5}, slots)
}

// A killed process leaves its slot, with a filter or packets, to the next one.
func TestKilled(t *testing.T) {
	killed, left := start(t, at, nil), (*process)(nil)
	require.Zero(t, killed.slot(t))
	left = start(t, at, nil)
	require.Equal(t, 1, left.slot(t))
	m := open(t, at, 2)
	requireSteered(t, m)
	conn, err := net.Dial("udp", at)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte{7: 0xc0, 31: 0})
	require.NoError(t, err)
	killed.kill()
	left.leave(t)
	requireSteered(t, m)
	requireSteered(t, open(t, at, 0), open(t, at, 1), m)
}

// What is for slots that no device has comes to the one that gets what is for none, and counts it.
func TestUnusedSlots(t *testing.T) {
	first, second, third := open(t, at, 0), open(t, at, 1), open(t, at, 2)
	third.close()
	for _, slot := range []byte{2, 9} {
		conn, err := net.Dial("udp", at)
		require.NoError(t, err)
		_, err = conn.Write([]byte{7: 0xc0 | slot, 31: 0})
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool {
			list, err := first.socket.Receive()
			require.NoError(t, err)
			return len(list) == 1 && list[0].Data[7] == 0xc0|slot
		}, time.Minute, time.Millisecond, "slot %d", slot)
	}
	requireSteered(t, open(t, at, 2), second)
}

// A child that was forked keeps the name of a slot. Nobody waits for it, nor gets it what is for none.
func TestForked(t *testing.T) {
	t.Setenv(forks, "1")
	parent := start(t, at, nil)
	t.Cleanup(func() { // until the child has ended
		_ = parent.in.Close()
		_, _ = io.Copy(io.Discard, parent.out)
	})
	require.Zero(t, parent.slot(t))
	m := open(t, at, 1)
	require.NoError(t, parent.Process.Kill())
	_, _ = parent.Process.Wait()
	m.TakeRest(1)
	require.NoError(t, m.Use(1, 1001))
	require.True(t, m.HasRest(1))
	require.False(t, m.Claim(0))
	requireSteered(t, m)

	name, err := m.claims[1].File()
	require.NoError(t, err)
	defer name.Close()
	second := open(t, at, 2)
	m.close()
	second.TakeRest(2)
	require.NoError(t, second.Use(2, 1002))
	require.True(t, second.HasRest(2))
	require.False(t, second.Claim(1))
	requireSteered(t, second)
}

// A stopped process does not keep others out, unless it is the only one that has the sockets.
func TestStopped(t *testing.T) {
	stopped := start(t, at, nil)
	require.Zero(t, stopped.slot(t))
	stopped.stop(t)
	_, _, err := join(at, 0)
	require.ErrorContains(t, err, fmt.Sprint("process ", stopped.Process.Pid))
	require.ErrorContains(t, err, "does not answer")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, stopped.Process.Signal(unix.SIGCONT))
	m := open(t, at, 1)
	stopped.stop(t)
	requireSteered(t, m, open(t, at, 2))
	m.close()
	requireSteered(t, open(t, at, 1))
}

// A process of another user or container keeps its port for itself.
func TestOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the test needs root")
	}
	for says, attr := range map[string]*syscall.SysProcAttr{
		"of user 12345":     {Credential: &syscall.Credential{Uid: 12345, Gid: 12345}},
		"does not share it": {Cloneflags: unix.CLONE_NEWPID},
	} {
		stranger := start(t, at, attr)
		require.Zero(t, stranger.slot(t))
		_, _, err := join(at, 0)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, says)
		stranger.leave(t)
		open(t, at, 0).close()
	}
}

// asStranger calls f with another effective user, which the system tells the peers of its sockets.
func asStranger(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the test needs root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set := func(user int) {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0)) // of this thread only
		require.Zero(t, errno)
	}
	set(12345)
	defer set(0)
	f()
}

// A process of another user that has the name of the lock is not waited for.
func TestLockOfStranger(t *testing.T) {
	const name = "@verbena/port/lock of a test" // other tests need the real one
	var l *net.UnixListener
	var err error
	asStranger(t, func() { l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}) })
	require.NoError(t, err)
	_, err = lock(name)
	assert.ErrorContains(t, err, "its user ID is 12345")
	require.NoError(t, l.Close())
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(sock)
	require.NoError(t, unix.Bind(sock, &unix.SockaddrUnix{Name: name}))
	_, err = lock(name)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// Those that wait for the lock get it in turn.
func TestLock(t *testing.T) {
	unlock, err := Lock()
	require.NoError(t, err)
	var waiting sync.WaitGroup
	var held atomic.Int32
	for range 20 {
		waiting.Go(func() {
			unlock, err := Lock()
			if !assert.NoError(t, err) {
				return
			}
			assert.EqualValues(t, 1, held.Add(1))
			runtime.Gosched()
			held.Add(-1)
			unlock()
		})
	}
	assert.Zero(t, held.Load())
	unlock()
	waiting.Wait()
}

// Another user's process that connects gets no sockets, and none are taken from one that has the name.
func TestStrangers(t *testing.T) {
	name := func(g *Group) *net.UnixAddr { return &net.UnixAddr{Name: g.name(0), Net: "unix"} }
	m := open(t, at, 0)
	var conn *net.UnixConn
	var err error
	to := name(m.Group)
	asStranger(t, func() { conn, err = net.DialUnix("unix", nil, to) })
	require.NoError(t, err)
	defer conn.Close()
	_, _ = conn.Write([]byte{request})
	_, size, _, _, _ := conn.ReadMsgUnix(make([]byte, 1), make([]byte, unix.CmsgSpace(4*handed)))
	require.Zero(t, size, "it got files")
	m.close()

	g, err := Join(t.Context(), link.Config{Addr: netip.MustParseAddrPort(at)})
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, g.open(link.Slots))
	require.NoError(t, g.makeTable())
	var l *net.UnixListener
	at0 := name(g)
	asStranger(t, func() { l, err = net.ListenUnix("unix", at0) })
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // then it takes files
			_, _, _ = conn.WriteMsgUnix([]byte{reply}, unix.UnixRights(append(slices.Clone(g.sockets), int(g.memory.Fd()))...), nil)
			_ = conn.Close()
		}
	})
	_, _, err = join(at, 0)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, l.Close())
	serving.Wait()
}

// Close does not wait for a process that has connected and says nothing, nor one for others.
func TestSilentClient(t *testing.T) {
	m := open(t, at, 0)
	conn, err := net.Dial("unix", m.name(0))
	require.NoError(t, err)
	defer conn.Close()
	open(t, at, 1)
	m.close()
}

// What another process hands over is checked.
func TestWrongSockets(t *testing.T) {
	wrong, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.7.21:4791")))
	require.NoError(t, err)
	defer wrong.Close()
	taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	require.NoError(t, err)
	defer taken.Close()
	raw, err := wrong.File()
	require.NoError(t, err)
	defer raw.Close()
	for name, files := range map[string][]int{
		"none": nil, "one": {int(raw.Fd())}, "of another address": slices.Repeat([]int{int(raw.Fd())}, handed), "too many": slices.Repeat([]int{int(raw.Fd())}, handed+1),
	} {
		t.Run(name, func(t *testing.T) {
			names, err := prefix()
			require.NoError(t, err)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: (&Group{prefix: names, cfg: link.Config{Addr: netip.MustParseAddrPort(at)}}).name(3), Net: "unix"})
			require.NoError(t, err)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					conn, err := l.AcceptUnix()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1))
					_, _, _ = conn.WriteMsgUnix([]byte{reply}, unix.UnixRights(files...), nil)
					_ = conn.Close()
				}
			})
			before := openFiles(t)
			_, _, err = join(at, 0)
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.NoError(t, l.Close())
			serving.Wait()
			assert.LessOrEqual(t, openFiles(t), before)
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
