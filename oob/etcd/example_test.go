package etcd_test

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/oob/etcd"
)

// How a program makes its peer. There is no cluster here, so that it can only be given
// up; otherwise the peer is used like that of any other way.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	way := etcd.New(client, etcd.Config{})
	peer, err := oob.New(way, oob.Config{Name: "client", Peer: "server"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(peer)
	// A way can be used without a Peer too, for bytes of any kind.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = way.Exchange(ctx, oob.Ends{Name: "client", Peer: "server", Note: func(string) {}}, []byte("hello"))
	fmt.Println(err)
	// Output:
	// server, through the etcd directory /verbena/oob
	// context deadline exceeded
}
