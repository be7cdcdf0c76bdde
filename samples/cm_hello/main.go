// Command cm_hello is the workflow of an RDMA program step by step: connection set-up by
// address, memory registration, posting of work requests, handling of completions,
// disconnection. Without -c it is the server, which answers the first message of each client;
// with -c HOST it is a client. Comments name the calls of rdma_cm(7) and libibverbs that each
// step takes in C.
package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	host, text, port := "", "Hello!", uint64(7471)
	sample.Main(sample.Program{
		Name: "cm_hello", About: "Exchanges a message with another cm_hello, connected by address.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&host, "c", "connect", "host", "be a client: connect to the server on that host")
			f.Uint64(&port, "p", "port", "port", "where the server listens")
			f.String(&text, "s", "send-string", "text", "the message")
		},
	}, func(ctx context.Context, s *sample.Session) error {
		return run(ctx, s, host, strconv.FormatUint(port, 10), text)
	})
}

func run(ctx context.Context, s *sample.Session, host, port, text string) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // ibv_dereg_mr, ibv_dealloc_pd

	// Memory registration: the device may read the message from here (ibv_reg_mr).
	memory, err := mmap.Alloc(dev, len(text), mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	copy(memory.Bytes(), text)

	// An engine replaces the event channel and the completion channel
	// (rdma_create_event_channel, ibv_create_comp_channel). The context has the protection
	// domain, the completion queue and a queue pair for each connection (ibv_alloc_pd,
	// ibv_create_cq, rdma_create_qp).
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // rdma_destroy_qp, ibv_destroy_cq, rdma_destroy_event_channel
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, MaxConnections: 16,
		EndWithLastConnection: host != "", ConnectTimeout: s.ConnectTimeout})
	if err != nil {
		return err
	}

	// Posting of work requests: a send with one scatter-gather entry, whose completion names
	// its task (ibv_post_send; wr_id). The SEND consumes a RECV that the peer has posted.
	sends, err := r.Pool(16, pe.FreeTask, func(t *rdma.Task, _ error) { pe.FreeTask(t) })
	if err != nil {
		return err
	}
	send := func(conn *rdma.Connection) error {
		task, err := sends.Send(conn, bufinv.Source(memory, 0, len(text)))
		return pe.SubmitOrFree(task, err)
	}

	// Completion handling (ibv_get_cq_event, ibv_poll_cq). The context reposts the RECV (ibv_post_recv).
	err = r.Receive(32, sample.Room, func(m *rdma.Message) {
		conn := m.Connection()
		s.Print("%v says %q", conn.PeerAddr().Addr(), m.Bytes())
		if host == "" {
			r.Fail(send(conn))
		} else {
			r.Fail(conn.Close()) // rdma_disconnect
		}
	})

	// Connection events (rdma_get_cm_event, rdma_ack_cm_event).
	r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		s.Log.Info().Err(err).Msgf("%v is %v", conn, state)
		switch {
		case state == rdma.Ready && host != "": // RDMA_CM_EVENT_ESTABLISHED
			s.Log.Info().Msgf("the server's private data: %q", strings.TrimRight(string(conn.AcceptData()), "\x00"))
			r.Fail(send(conn))
		case state == rdma.Failed: // RDMA_CM_EVENT_UNREACHABLE, REJECTED and others
			r.Fail(conn.Close())
		case host != "": // Closed: RDMA_CM_EVENT_DISCONNECTED, rdma_destroy_id
			r.Fail(err) // the error if the server left without closing the connection; otherwise nil
		}
	})
	if err := errors.Join(err, r.Start()); err != nil {
		return err
	}
	if host == "" { // rdma_bind_addr, rdma_listen; each RDMA_CM_EVENT_CONNECT_REQUEST: rdma_accept
		_, err = r.Listen(":"+port, rdma.ListenConfig{PrivateData: []byte("welcome")})
	} else { // rdma_resolve_addr, rdma_resolve_route, rdma_connect
		_, err = r.Dial(net.JoinHostPort(host, port), rdma.DialConfig{Once: true}) // if nobody listens, fail at once
	}
	s.Say("waiting for the peer at %s", net.JoinHostPort(host, port))
	r.Fail(err)
	return engine.Run(ctx) // a server ends with Ctrl-C
}
