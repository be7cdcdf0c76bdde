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
	b = append(append(b, kindConnect), c.Client[:]...)
	for _, r := range c.Regions {
		b = binary.BigEndian.AppendUint64(b, r.Addr)
		b = binary.BigEndian.AppendUint64(b, r.Size)
		b = binary.BigEndian.AppendUint32(b, r.RKey)
	}
	return b
}

// FillLen returns the length of a RandomFill message for that many pages, in bytes.
func FillLen(pages int) int { return 1 + 32 + 4 + 8 + 8 + 4 + 4*pages }

// Append appends the encoded message.
func (f *RandomFill) Append(b []byte) []byte {
	b = append(append(b, kindRandomFill), f.Client[:]...)
	b = binary.BigEndian.AppendUint32(b, f.Context)
	b = binary.BigEndian.AppendUint64(b, f.Seed)
	b = binary.BigEndian.AppendUint64(b, f.PageSize)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Pages)))
	for _, p := range f.Pages {
		b = binary.BigEndian.AppendUint32(b, p)
	}
	return b
}

// Parse decodes a message. One of the two results is not nil.
func Parse(b []byte) (*Connect, *RandomFill, error) {
	const connectLen = 1 + 32 + Regions*20
	switch {
	case len(b) == connectLen && b[0] == kindConnect:
		c := &Connect{Client: Address(b[1:])}
		for i := range c.Regions {
			r := b[33+20*i:]
			c.Regions[i] = Remote{binary.BigEndian.Uint64(r), binary.BigEndian.Uint64(r[8:]), binary.BigEndian.Uint32(r[16:])}
		}
		return c, nil, nil
	case len(b) >= FillLen(0) && b[0] == kindRandomFill:
		f := &RandomFill{
			Client: Address(b[1:]), Context: binary.BigEndian.Uint32(b[33:]), Seed: binary.BigEndian.Uint64(b[37:]),
			PageSize: binary.BigEndian.Uint64(b[45:]),
		}
		pages := b[FillLen(0):]
		if uint64(len(pages)) != 4*uint64(binary.BigEndian.Uint32(b[53:])) {
			break
		}
		for ; len(pages) > 0; pages = pages[4:] {
			f.Pages = append(f.Pages, binary.BigEndian.Uint32(pages))
		}
		return nil, f, nil
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
