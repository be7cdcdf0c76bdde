// Package writecpu has the common code of write_cpu_server and write_cpu_client that is not
// worth showing in each: addresses, the two messages, and the endpoint that carries them.
package writecpu

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// Address is the address of a program: GID (16 bytes), queue pair number (4), Q_Key (4), UDP
// port of the device (2), and zeroes.
type Address [32]byte

// NewAddress returns the address of a queue pair.
func NewAddress(gid verbs.GIDEntry, qpn, qkey uint32) (a Address) {
	copy(a[:], gid.GID[:])
	binary.BigEndian.PutUint32(a[16:], qpn)
	binary.BigEndian.PutUint32(a[20:], qkey)
	binary.BigEndian.PutUint16(a[24:], gid.UDPPort)
	return a
}

// ParseAddress reads the 64 hexadecimal digits that String writes.
func ParseAddress(s string) (a Address, err error) {
	b, err := hex.DecodeString(s)
	switch {
	case err != nil || len(b) != len(a):
		return a, fmt.Errorf("%.80q is not an address: want the 64 hexadecimal digits that write_cpu_server prints", s)
	case binary.BigEndian.Uint32(b[16:]) < 2 || binary.BigEndian.Uint32(b[16:]) >= verbs.MulticastQPN:
		return a, fmt.Errorf("%q is not an address: its queue pair number is not valid", s)
	case [6]byte(b[26:]) != [6]byte{}:
		return a, fmt.Errorf("%q is not an address: its last 6 bytes are not zero", s)
	}
	return Address(b), nil
}

// String returns the address as 64 hexadecimal digits.
func (a Address) String() string { return hex.EncodeToString(a[:]) }

func (a *Address) qpn() uint32     { return binary.BigEndian.Uint32(a[16:]) }
func (a *Address) qkey() uint32    { return binary.BigEndian.Uint32(a[20:]) }
func (a *Address) udpPort() uint16 { return binary.BigEndian.Uint16(a[24:]) }

// Regions is the number of a client's memory regions.
const Regions = 2

// Remote is a memory region of a client.
type Remote struct {
	Addr uint64
	Size uint64
	RKey uint32
}

// Connect is the message with which a client introduces itself.
type Connect struct {
	Client  Address
	Regions [Regions]Remote
}

// RandomFill is the message with which a client asks for data. It names the client, as Connect
// does: SRD keeps no order, so RandomFill may arrive first, and the server keeps it until
// Connect arrives.
type RandomFill struct {
	Client   Address
	Context  uint32 // the immediate data of the last write
	Seed     uint64
	PageSize uint64   // bytes
	Pages    []uint32 // the places for the pages, in each region
}

// The kinds of messages, in their first byte.
const (
	kindConnect    = 1
	kindRandomFill = 2
)

// ErrMessage: the data is not a message of write_cpu_client.
var ErrMessage = errors.New("not a message of write_cpu_client")

// Append appends the encoded message.
func (c *Connect) Append(b []byte) []byte {
	b, _ = binary.Append(append(b, kindConnect), binary.BigEndian, c) // fails only for sizes that vary
	return b
}

// fillHeader is a RandomFill but for its pages.
type fillHeader struct {
	Client         Address
	Context        uint32
	Seed, PageSize uint64
	Pages          uint32 // how many
}

// FillLen returns the length of a RandomFill message for that many pages, in bytes.
func FillLen(pages int) int { return 1 + binary.Size(fillHeader{}) + 4*pages }

// Append appends the encoded message.
func (f *RandomFill) Append(b []byte) []byte {
	b, _ = binary.Append(append(b, kindRandomFill), binary.BigEndian, fillHeader{f.Client, f.Context, f.Seed, f.PageSize, uint32(len(f.Pages))})
	b, _ = binary.Append(b, binary.BigEndian, f.Pages)
	return b
}

// Parse decodes a message. One of the two results is not nil.
func Parse(b []byte) (*Connect, *RandomFill, error) {
	c, h := &Connect{}, fillHeader{}
	switch {
	case len(b) == 1+binary.Size(c) && b[0] == kindConnect:
		_, err := binary.Decode(b[1:], binary.BigEndian, c)
		return c, nil, err
	case len(b) >= FillLen(0) && b[0] == kindRandomFill:
		n, err := binary.Decode(b[1:], binary.BigEndian, &h)
		pages := b[1+n:]
		if err != nil || uint64(len(pages)) != 4*uint64(h.Pages) {
			break
		}
		f := &RandomFill{h.Client, h.Context, h.Seed, h.PageSize, make([]uint32, h.Pages)}
		_, err = binary.Decode(pages, binary.BigEndian, f.Pages)
		return nil, f, err
	}
	return nil, nil, fmt.Errorf("%w: %d bytes", ErrMessage, len(b))
}

// Check returns why the server cannot do what a client asks for, or nil.
func (f *RandomFill) Check(c *Connect) error {
	n := uint64(len(f.Pages))
	if f.PageSize == 0 || n == 0 || f.PageSize > Memory || n > Memory/f.PageSize {
		return fmt.Errorf("%d pages of %d bytes: the total must be 1 to %d bytes", n, f.PageSize, Memory)
	}
	for _, r := range c.Regions {
		for _, p := range f.Pages {
			if uint64(p) >= r.Size/f.PageSize {
				return fmt.Errorf("page %d of %d bytes is beyond the client's memory of %d bytes", p, f.PageSize, r.Size)
			}
		}
	}
	return nil
}
