package etcd_test

import (
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/oob/etcd"
)

// How a program makes its peer.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	peer, err := oob.New(etcd.New(client, etcd.Config{}), oob.Config{Name: "client", Peer: "server"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(peer)
	// Output:
	// server, through the etcd directory /verbena/oob
}
