package etcd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// The test program is also the programs that it starts: an etcd server, and members. Both
// end when their standard input does.
const (
	programVariable = "VERBENA_TEST_PROGRAM" // names the program and its arguments
	serverProgram   = "server"               // HOST
	memberProgram   = "member"               // ENDPOINT PREFIX DEVICE RUN NAME OTHER...
)

// runProgram runs the program that the environment names, if it names one.
func runProgram() (ran bool) {
	args := strings.Fields(os.Getenv(programVariable))
	if len(args) == 0 {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var err error
	switch args[0] {
	case serverProgram:
		err = runServer(ctx, args[1])
	case memberProgram:
		err = runMember(ctx, args[1], args[2], args[3], args[4], args[5], args[6:])
	default:
		err = fmt.Errorf("no program %q", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func runServer(ctx context.Context, host string) error {
	stop, err := serve(host)
	if err != nil {
		return err
	}
	fmt.Println("listens at", endpoint)
	<-ctx.Done()
	stop()
	return nil
}

const (
	messageRoom = 8 << 10 // bytes
	reportEvery = 50      // messages
)

// member is a program that finds others by name, again and again as they die and come
// back, and sends numbered messages to each that is there. Everything but closing runs
// on the engine's goroutine.
type member struct {
	client  *clientv3.Client
	cfg     Config
	name    string
	run     string // differs each time that the program is started
	engine  *pe.Engine
	rdma    *rdma.Connections
	sends   *rdma.Pool
	bufs    bufinv.Inventory
	others  []*other
	closing sync.WaitGroup
	mu      sync.Mutex
	failed  error // of closing
}

// other is one of the others.
type other struct {
	name   string
	memory *mmap.Map
	peer   *oob.Peer
	conn   *rdma.Connection
	busy   bool // a send is in flight
	// Of this connection:
	run                      string
	sent, received, reported int
}

func runMember(ctx context.Context, endpoint, prefix, dev, run, name string, others []string) (err error) {
	defer func() {
		if err == nil {
			err = goleak.Find()
		}
	}()
	m := &member{cfg: Config{Prefix: prefix}, name: name, run: run}
	if m.client, err = clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.client.Close()) }()
	d, err := device.Open(dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	m.engine = pe.New(pe.Config{})
	defer func() { err = errors.Join(err, m.engine.Close()) }()
	if err := m.prepare(d, others); err != nil {
		return err
	}
	if err := m.rdma.Start(); err != nil {
		return err
	}
	sending := make(chan struct{})
	running, stop := context.WithCancel(ctx)
	go m.sendNowAndThen(running, sending)
	err = m.engine.Run(ctx)
	stop()
	<-sending
	m.closing.Wait()
	if ctx.Err() != nil && m.rdma.Err() == nil && errors.Is(err, context.Canceled) {
		err = nil // it was asked to end
	}
	return errors.Join(err, m.failed)
}

func (m *member) prepare(dev verbs.Device, others []string) (err error) {
	// A connection that has ended keeps its place until it is reported Closed, and the next
	// is made then: there is never more than one with each.
	if m.rdma, err = rdma.New(dev, rdma.Config{Engine: m.engine, MaxConnections: len(others)}); err != nil {
		return err
	}
	if m.sends, err = m.rdma.Pool(len(others), m.sendDone, m.sendFailed); err != nil {
		return err
	}
	if err := m.rdma.Receive(64, messageRoom, m.received); err != nil {
		return err
	}
	for _, name := range others {
		memory, err := mmap.Alloc(dev, messageRoom, mmap.LocalReadWrite)
		if err != nil {
			return err
		}
		m.others = append(m.others, &other{name: name, memory: memory})
	}
	m.rdma.OnConnection(m.connection)
	m.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			for _, o := range m.others {
				m.find(o)
			}
			fmt.Println("waits")
		}
	})
	return nil
}

// find waits for another to be there, and connects.
func (m *member) find(o *other) {
	role := oob.Requester
	if m.name > o.name {
		role = oob.Responder
	}
	peer, err := oob.New(New(m.client, m.cfg), oob.Config{Name: m.name, Peer: o.name, Role: role})
	if err != nil {
		m.rdma.Fail(err)
		return
	}
	*o = other{name: o.name, memory: o.memory, peer: peer}
	peer.Connect(m.rdma, func(conn *rdma.Connection, _ *mmap.Map, err error) {
		if err != nil {
			m.close(o, err)
			m.rdma.Fail(err) // which ignores that it stops
			return
		}
		o.conn = conn
		conn.SetUserData(o)
	})
}

// close closes a Peer, which asks etcd, and so takes a goroutine of its own.
func (m *member) close(o *other, err error) {
	peer := o.peer
	m.closing.Go(func() {
		err := peer.Close(err)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.failed = errors.Join(m.failed, err)
	})
}

func (m *member) connection(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	o, found := conn.UserData().(*other)
	switch state {
	case rdma.Failed:
		fmt.Printf("failed: %s %s: %v\n", o.name, o.run, err)
		_ = conn.Close()
	case rdma.Closed:
		if !found {
			return // it stops before the other was found
		}
		fmt.Printf("closed: %s %s: %v\n", o.name, o.run, err)
		m.close(o, conn.Err())
		if m.rdma.State() == pe.Running {
			m.find(o)
		}
	}
}

// sendNowAndThen keeps sending, without keeping processors busy.
func (m *member) sendNowAndThen(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		_ = m.engine.Do(func() { // fails only at the end
			for _, o := range m.others {
				if o.conn != nil && o.conn.State() == rdma.Ready && !o.busy && m.rdma.State() == pe.Running {
					m.rdma.Fail(m.send(o))
				}
			}
		})
	}
}

func (m *member) send(o *other) error {
	n := copy(o.memory.Bytes(), message(m.name, m.run, o.name, o.sent))
	task, err := m.sends.Send(o.conn, m.bufs.Source(o.memory, 0, n))
	if err != nil {
		return err
	}
	task.SetUserData(o)
	if err := task.Submit(); err != nil {
		return errors.Join(err, task.Free())
	}
	o.busy = true
	return nil
}

func (m *member) sendDone(task *rdma.Task) {
	o := task.UserData().(*other)
	o.busy = false
	o.sent++
	m.rdma.Fail(task.Free())
	o.report()
}

// sendFailed: the connection ends with it, and says why.
func (m *member) sendFailed(task *rdma.Task, _ error) {
	task.UserData().(*other).busy = false
	m.rdma.Fail(task.Free())
}

func (m *member) received(msg *rdma.Message) {
	o := msg.Connection().UserData().(*other)
	head, _, _ := bytes.Cut(msg.Bytes(), []byte("\n"))
	var from, run, to string
	var number int
	_, err := fmt.Sscan(string(head), &from, &run, &to, &number)
	if o.run == "" {
		o.run = run
	}
	if err != nil || from != o.name || to != m.name || run != o.run || number != o.received || !bytes.Equal(msg.Bytes(), message(from, run, to, number)) {
		m.rdma.Fail(fmt.Errorf("message %d of %s %s is wrong: %q, %d bytes", o.received, o.name, o.run, head, msg.Length()))
		return
	}
	o.received++
	o.report()
}

// report says how many messages have gone both ways.
func (o *other) report() {
	if n := min(o.sent, o.received); n >= o.reported+reportEvery {
		o.reported = n
		fmt.Printf("exchanged: %s %s: %d messages\n", o.name, o.run, n)
	}
}

// message is one that all of its bytes depend on who sends it to whom, and on its number.
func message(from, run, to string, number int) []byte {
	head := fmt.Sprintf("%s %s %s %d\n", from, run, to, number)
	random := rand.NewChaCha8(sha256.Sum256([]byte(head)))
	b := make([]byte, len(head)+int(random.Uint64()%(messageRoom/2)))
	_, _ = random.Read(b[copy(b, head):])
	return b
}

// lines splits what a program has printed, without a line that is not whole yet.
func lines(text string) (list []string) {
	scanner := bufio.NewScanner(strings.NewReader(text[:strings.LastIndex(text, "\n")+1]))
	for scanner.Scan() {
		list = append(list, scanner.Text())
	}
	return list
}
