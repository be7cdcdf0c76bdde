package writecpu

import (
	"fmt"
	"slices"
	"strconv"
)

// Requests keeps the clients' messages. The two messages of a client may arrive in either
// order.
type Requests struct {
	connects map[Address]*Connect
	fills    map[Address]*RandomFill
	ready    []Address // clients in the order of their messages
	waiting  []Address // clients with messages that Next has not returned, the oldest first
}

// maxWaiting bounds the number of messages that wait for the client's other message. Beyond
// it the oldest is dropped.
const maxWaiting = 1024

// Add adds a message. Its error matches ErrMessage.
func (r *Requests) Add(b []byte) error {
	c, f, err := Parse(b)
	switch {
	case err != nil:
		return err
	case r.connects == nil:
		r.connects, r.fills = map[Address]*Connect{}, map[Address]*RandomFill{}
	}
	client := Address{}
	if c != nil {
		client, r.connects[c.Client] = c.Client, c
	} else {
		client, r.fills[f.Client] = f.Client, f
	}
	r.ready = append(r.ready, client)
	if r.waiting = append(r.waiting, client); len(r.waiting) > maxWaiting {
		oldest := r.waiting[0]
		r.waiting = r.waiting[1:]
		delete(r.connects, oldest)
		delete(r.fills, oldest)
	}
	return nil
}

// Next returns the messages of a client that has sent both, and forgets them; nil if there is
// none. Clients are served in the order in which they became complete.
func (r *Requests) Next() (c *Connect, f *RandomFill) {
	for len(r.ready) > 0 {
		client := r.ready[0]
		r.ready = r.ready[1:]
		if c, f = r.connects[client], r.fills[client]; c != nil && f != nil {
			delete(r.connects, client)
			delete(r.fills, client)
			r.waiting = slices.DeleteFunc(r.waiting, func(a Address) bool { return a == client })
			return c, f
		}
	}
	return nil, nil
}

// Memory is the size of each region of a client, and of the server's data for it, in bytes.
const Memory = 16 << 20

// Operands reads the command line of write_cpu_client: ADDRESS [PAGE_SIZE NUM_PAGES].
func Operands(args []string) (server Address, size, pages int, err error) {
	numbers := []string{"1048576", "8"}
	if len(args) == 3 {
		numbers = args[1:]
	}
	if len(args) != 1 && len(args) != 3 {
		return server, 0, 0, fmt.Errorf("give the server's address, then either both the size and the number of pages or neither")
	}
	if server, err = ParseAddress(args[0]); err != nil {
		return server, 0, 0, err
	}
	size, err = strconv.Atoi(numbers[0])
	if err == nil {
		pages, err = strconv.Atoi(numbers[1])
	}
	if err != nil || size < 1 || pages < 1 || size > Memory || pages > Memory/size {
		return server, 0, 0, fmt.Errorf("%s pages of %s bytes: the total must be 1 to %d bytes", numbers[1], numbers[0], Memory)
	}
	return server, size, pages, nil
}
