package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// planted is a fault that the tests must find: with "double", a server that has crashed forgets which
// payments it has made.
var planted = os.Getenv("VERBENA_PLANTED_FAULT")

// payment is a request. A client repeats it, with the same number, until the server has confirmed it.
type payment struct {
	Client string
	Number int
}

// bank is the service: it makes each payment once, however often it is asked.
type bank struct {
	pb.UnimplementedTestServiceServer
	s    *sim.Sim
	disk *sim.Disk
	turn chan struct{} // has room for one: that of the call that may use the rest
	paid []payment
	next map[string]int // the number of each client's next payment
}

const ledger = "ledger"

// open reads the payments that were made before a crash. The last one may be torn.
func (b *bank) open() error {
	b.turn, b.paid, b.next = make(chan struct{}, 1), nil, map[string]int{}
	text, err := fs.ReadFile(b.disk, ledger)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var p payment
		if json.Unmarshal([]byte(line), &p) != nil || !strings.HasSuffix(line, "\n") {
			b.s.Reached("a payment is torn")
			break
		}
		b.note(p, planted != "double")
	}
	f, err := b.disk.Create(ledger + ".new")
	if err != nil {
		return err
	}
	return errors.Join(b.write(f, b.paid...), b.disk.Rename(ledger+".new", ledger), b.disk.Sync())
}

func (b *bank) note(p payment, remember bool) {
	b.paid = append(b.paid, p)
	if remember {
		b.next[p.Client] = p.Number + 1
	}
}

// write writes payments to the end of a file, and closes it.
func (b *bank) write(f *sim.File, list ...payment) error {
	defer f.Close()
	for _, p := range list {
		line, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return f.Sync()
}

// UnaryCall makes a payment. It uses a channel as a lock, since a sync takes time of the simulation.
func (b *bank) UnaryCall(ctx context.Context, request *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	var p payment
	if err := json.Unmarshal(request.Payload.Body, &p); err != nil {
		return nil, err
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-b.turn }()
	if p.Number < b.next[p.Client] {
		b.s.Reached("a payment is asked for again")
		return &pb.SimpleResponse{}, nil
	}
	f, err := b.disk.Append(ledger)
	if err == nil {
		err = b.write(f, p)
	}
	if err != nil {
		return nil, err
	}
	b.note(p, true)
	return &pb.SimpleResponse{}, nil
}

func newStack(dev verbs.Device) (*rsocket.Stack, error) {
	return rsocket.New(rsocket.Config{Device: dev, MaxConnections: 16, KeepAlive: time.Second, SilenceTimeout: 2 * time.Second, Linger: time.Second})
}

// run is the program of the server.
func (b *bank) run(ctx context.Context, dev verbs.Device) error {
	stack, err := newStack(dev)
	if err != nil {
		return err
	}
	l, err := stack.Listen(":443")
	if err == nil {
		err = b.open()
	}
	if err != nil {
		return errors.Join(err, stack.Close())
	}
	server := grpc.NewServer()
	pb.RegisterTestServiceServer(server, b)
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(l) }()
	<-ctx.Done()
	err = stack.Close()
	server.Stop()
	<-serving
	return err
}

// customer is a client. What it knows outlives its crashes.
type customer struct {
	s         *sim.Sim
	host      *sim.Host
	server    *sim.Host
	confirmed int
}

const payments = 15

// run is the program of a client.
func (c *customer) run(ctx context.Context, dev verbs.Device) error {
	stack, err := newStack(dev)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+c.server.Addr().String()+":443",
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return stack.DialContext(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: time.Second}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return errors.Join(err, stack.Close())
	}
	service := pb.NewTestServiceClient(conn)
	for c.confirmed < payments && ctx.Err() == nil {
		c.pay(ctx, service)
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(conn.Close(), stack.Close())
}

// pay asks for the next payment.
func (c *customer) pay(ctx context.Context, service pb.TestServiceClient) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	body, err := json.Marshal(payment{c.host.Name(), c.confirmed})
	require.NoError(c.s, err)
	_, err = service.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: body}})
	if err == nil {
		c.confirmed++
	}
}

// Clients repeat calls while hosts crash and links fail. Each payment is made once.
func TestPayments(t *testing.T) { sim.CheckSerial(t, 10, pay) }

func pay(s *sim.Sim) {
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.01})
	server := s.Host("server")
	b := &bank{s: s, disk: server.Disk()}
	server.Run(b.run)
	var clients []*customer
	for _, h := range s.Hosts("client", 2) {
		c := &customer{s: s, host: h, server: server}
		clients = append(clients, c)
		h.Run(c.run)
	}
	s.Sometimes(false, "a payment is torn")
	s.Sometimes(false, "a payment is asked for again")
	chaos := s.Nemesis(sim.Chaos{Interval: 500 * time.Millisecond, Longest: 3 * time.Second, Until: 6 * time.Second})
	s.RunUntil(chaos.Done, time.Minute)
	isOver := func() bool {
		return !slices.ContainsFunc(clients, func(c *customer) bool { return c.confirmed < payments })
	}
	s.RunUntil(isOver, time.Minute)
	made := map[payment]int{}
	for _, p := range b.paid {
		made[p]++
		require.Equal(s, 1, made[p], "%v is made again", p)
	}
	require.Len(s, made, 2*payments)
	s.Sometimes(server.Starts() > 1, "the server crashes")
}

func BenchmarkSeeds(b *testing.B) { sim.Benchmark(b, pay) }
