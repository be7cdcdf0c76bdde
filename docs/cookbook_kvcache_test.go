package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

const blockSize = 64 << 10

// cache is the KV cache of a host, in blocks of one size.
type cache struct {
	agent  *transfer.Agent
	blocks *transfer.Segment
	peers  map[string]*transfer.RemoteSegment // the caches of hosts of the other pool, by address
}

func openCache(listen string, blocks int, devices ...verbs.Device) (*cache, error) {
	agent, err := transfer.Open(transfer.Config{Devices: devices, Listen: listen})
	if err != nil {
		return nil, err
	}
	c := &cache{agent: agent, peers: map[string]*transfer.RemoteSegment{}}
	c.blocks, err = agent.Register("kv", make([]byte, blocks*blockSize), mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	return c, nil
}

func (c *cache) block(n int) []byte { return c.blocks.Bytes()[n*blockSize:][:blockSize] }

// push writes blocks to the cache at addr, each to its place there, and then sends it the number of the request.
func (c *cache) push(ctx context.Context, addr string, request uint32, places map[int]int) error {
	kv := c.peers[addr]
	if kv == nil {
		peer, err := c.agent.Dial(ctx, addr)
		if err != nil {
			return err
		}
		if kv, err = peer.Segment(ctx, "kv"); err != nil {
			peer.Close()
			return err
		}
		c.peers[addr] = kv
	}
	var b transfer.Batch
	for from, to := range places {
		b.Write(kv, to*blockSize, c.block(from))
	}
	b.Note(kv.Peer(), request)
	h, err := c.agent.Submit(&b)
	if err == nil {
		err = h.Wait(ctx)
	}
	if errors.Is(err, transfer.ErrStale) { // the host was started again, with an empty cache
		delete(c.peers, addr)
		kv.Peer().Close()
	}
	return err
}

// serve decodes requests whose blocks have arrived.
func (c *cache) serve(ctx context.Context, decode func(request uint32)) error {
	for {
		note, err := c.agent.Note(ctx)
		if err != nil {
			return err
		}
		decode(note.Value)
	}
}

// Two hosts that fill caches push blocks to two that decode. One of these is started again.
func TestCookbookKVCache(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := func(listen string) *cache {
		dev, err := device.Open("soft-lo")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		c, err := openCache(listen, 64, dev)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.agent.Close()) })
		return c
	}
	decoded := make(chan string)
	serve := func(c *cache) string {
		addr := c.agent.Addrs()[0].String()
		go func() {
			_ = c.serve(ctx, func(request uint32) {
				if request < 64 { // whoever can dial may send any number
					decoded <- fmt.Sprint(addr, request, bytes.Count(c.block(int(request)), []byte{byte(request)}))
				}
			})
		}()
		return addr
	}
	decoders := []*cache{open("127.0.0.1:0"), open("127.0.0.1:0")}
	addrs := []string{serve(decoders[0]), serve(decoders[1])}
	for i := range 2 {
		fills := open("")
		for request := range uint32(20) {
			copy(fills.block(1), bytes.Repeat([]byte{byte(request)}, blockSize))
			addr := addrs[request%2]
			pushed := make(chan error)
			go func() { pushed <- fills.push(ctx, addr, request, map[int]int{1: int(request), 2: 40}) }()
			require.Equal(t, fmt.Sprint(addr, request, blockSize), <-decoded)
			require.NoError(t, <-pushed)
		}
		if i == 0 {
			require.NoError(t, decoders[0].agent.Close())
			now := serve(open(addrs[0])) // the same, perhaps by another name
			err := fills.push(ctx, addrs[0], 1, map[int]int{1: 1})
			require.ErrorIs(t, err, transfer.ErrStale)
			pushed := make(chan error)
			go func() { pushed <- fills.push(ctx, addrs[0], 1, map[int]int{3: 1}) }()
			require.Equal(t, fmt.Sprint(now, 1, 0), <-decoded)
			require.NoError(t, <-pushed)
			addrs[0] = now
		}
	}
}
