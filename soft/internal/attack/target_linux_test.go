package attack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// target is a queue pair of the right victim that is connected to the attacker, and memory in its
// protection domain.
type target struct {
	Addr   netip.AddrPort
	QPN    uint32
	Addr64 uint64 // of memory that the attacker may read, write and add to
	RKey   uint32
	Secret uint64 // of memory whose key the attacker does not have

	SecretWord uint64 // fills this memory, so that the attacker recognizes it
}

// Numbers of the connection to a target.
const (
	attackerQPN    = 0xabcde0
	attackerPSN    = 0x100000 // of the attacker's first request
	targetPSN      = 0x200000 // of the target's first request
	targetMTU      = 1024
	targetBytes    = 256 << 20
	secretBytes    = 4096
	targetReads    = 128
	targetMessages = 16
)

// targetQP is the victim's side of a target.
type targetQP struct {
	qp     verbs.QP
	cq     verbs.CQ
	secret []byte
	word   uint64
}

// intact reports whether the secret is unchanged.
func (t *targetQP) intact() bool {
	for i := 0; i < len(t.secret); i += 8 {
		if atomic.LoadUint64(wordOf(t.secret[i:])) != t.word {
			return false
		}
	}
	return true
}

// openTarget connects a queue pair to the address of an attacker, as to a foreign device.
func (v *victim) openTarget(m *message) (target, error) {
	dev := v.ends[busy].dev
	pd, err := dev.AllocPD()
	if err != nil {
		return target{}, err
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 256})
	if err != nil {
		return target{}, err
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 128, MaxRecvWR: 128})
	if err != nil {
		return target{}, err
	}
	granted, err := unix.Mmap(-1, 0, targetBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return target{}, err
	}
	secret, err := unix.Mmap(-1, 0, secretBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return target{}, err
	}
	word := rand.Uint64()
	for i := 0; i < len(secret); i += 8 {
		binary.NativeEndian.PutUint64(secret[i:], word)
	}
	v.targets = append(v.targets, &targetQP{qp, cq, secret, word})
	access := verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	open, err := pd.RegMR(granted, access|verbs.AccessLocalWrite)
	if err != nil {
		return target{}, err
	}
	shut, err := pd.RegMR(secret, access|verbs.AccessLocalWrite)
	if err != nil {
		return target{}, err
	}
	if err := connectTarget(qp, access, m.Addresses[0]); err != nil {
		return target{}, err
	}
	for i := range targetMessages {
		sge := []verbs.SGE{{Addr: open.Addr(), Length: 8, LKey: open.LKey()}}
		if _, err := qp.PostRecv([]verbs.RecvWR{{SGL: sge}}); err != nil {
			return target{}, err
		}
		if m.Text != "sends" {
			continue
		}
		if _, err := qp.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, SGL: sge}}); err != nil {
			return target{}, err
		}
	}
	gids, err := dev.GIDs(1)
	if err != nil {
		return target{}, err
	}
	return target{
		Addr: netip.AddrPortFrom(gids[0].GID.Addr(), gids[0].UDPPort), QPN: qp.Num(), Addr64: open.Addr(), RKey: open.RKey(),
		Secret: shut.Addr(), SecretWord: word,
	}, nil
}

func connectTarget(qp verbs.QP, access verbs.Access, to netip.AddrPort) error {
	steps := []verbs.QPAttr{
		{State: verbs.QPInitialized, Port: 1, Access: access},
		{State: verbs.QPReadyToReceive, PathMTU: targetMTU, DestQPN: attackerQPN, RQPSN: attackerPSN, MaxDestReadAtomic: targetReads, MinRNRTimer: 1,
			Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(to.Addr()), Port: 1, UDPPort: to.Port()}},
		{State: verbs.QPReadyToSend, SQPSN: targetPSN, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 16},
	}
	for i, mask := range []verbs.QPAttrMask{verbs.RCToInit, verbs.RCToRTR, verbs.RCToRTS} {
		if err := qp.Modify(steps[i], mask); err != nil {
			return err
		}
	}
	return nil
}

// newcomerTimeout is longer than a device keeps an incomplete handshake.
const newcomerTimeout = 4 * hangTimeout / 3

// dial makes another connection between the victims, as a new peer would. If the UDP port is zero, the
// registry of the machine has to name the device.
func (v *victim) dial(m *message, udpPort uint16) error {
	ctx, cancel := context.WithTimeout(v.ctx, newcomerTimeout)
	defer cancel()
	e, to := v.ends[idle], m.Ends[idle]
	conn, err := await.Dial(ctx, e.rdma, netip.AddrPortFrom(to.Addr.Addr(), to.Listener).String(), rdma.DialConfig{UDPPort: udpPort, Timeout: newcomerTimeout})
	if err != nil {
		return err
	}
	return await.Func(ctx, e.engine, conn.Close)
}

// peers connects one context to all connections that the attacker offers.
func (v *victim) peers(descs [][]byte) (own [][]byte, err error) {
	if v.manyConns == nil {
		engine := pe.New(pe.Config{})
		if v.manyConns, err = rdma.New(v.ends[busy].dev, rdma.Config{Engine: engine, MaxConnections: 8192, Name: "many connections"}); err != nil {
			return nil, err
		}
		go func() { _ = await.Run(v.ctx, engine) }()
		if err := await.Start(v.ctx, v.manyConns); err != nil {
			return nil, err
		}
	}
	err = await.Func(v.ctx, v.manyConns.Engine(), func() error {
		for _, desc := range descs {
			conn, mine, err := v.manyConns.Export()
			if err == nil {
				err = conn.Connect(desc)
			}
			if err != nil {
				return err
			}
			own = append(own, mine)
		}
		return nil
	})
	return own, err
}

// take connects to the peer that a descriptor names, and returns why that was refused: by
// Connect, or by the device when the queue pair was brought up.
func (v *victim) take(desc []byte) error {
	e := v.ends[idle]
	var conn *rdma.Connection
	err := await.Func(v.ctx, e.engine, func() (err error) {
		if conn, _, err = e.rdma.Export(); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		return conn.Connect(desc)
	})
	for up := false; err == nil && !up; {
		err = await.Func(v.ctx, e.engine, func() error {
			if conn.State() != rdma.Connecting {
				return conn.Err()
			}
			attr, err := conn.QP().Query()
			up = attr.State == verbs.QPReadyToSend
			return err
		})
	}
	if conn != nil {
		err = errors.Join(err, await.Func(v.ctx, e.engine, conn.Close))
	}
	return err
}

func addrs(a ...netip.AddrPort) []netip.AddrPort { return a }

func wordOf(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

func packetsOf(length, mtu uint32) int { return int(max(1, (length+mtu-1)/mtu)) }
