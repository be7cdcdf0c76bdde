// Package control has the control messages between the two ends of verbena perf, and sends
// them over a stream, which is TCP or an RDMA connection.
//
// A frame is a header and a JSON object:
//
//	4 bytes  "VBPF"
//	2 bytes  version of the protocol, 2
//	2 bytes  kind of message
//	4 bytes  length of the object, at most MaxPayload
//
// Numbers are in network byte order. Another version, an unknown kind, a length above the
// limit, an unknown field, and bytes after the object are errors, which end the stream.
package control

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the version of the protocol.
const Version = 2

// MaxPayload is the length of the longest object, in bytes.
const MaxPayload = 256 << 10

const headerLen = 12

var magic = [4]byte{'V', 'B', 'P', 'F'}

// ErrProtocol: the received data does not follow the protocol.
var ErrProtocol = errors.New("the message is not of verbena perf's protocol")

// Append appends the frame of a message.
func Append(b []byte, m Message) ([]byte, error) {
	payload, err := json.Marshal(m)
	if err != nil {
		return b, err
	}
	if len(payload) > MaxPayload {
		return b, fmt.Errorf("a %v of %d bytes, longer than the limit of %d", m.kind(), len(payload), MaxPayload)
	}
	b = append(b, magic[:]...)
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint16(b, uint16(m.kind()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...), nil
}

// Read reads a frame. At the end of the stream, between two frames, the error is io.EOF.
func Read(r io.Reader) (Message, error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	version, kind := binary.BigEndian.Uint16(header[4:]), Kind(binary.BigEndian.Uint16(header[6:]))
	length := binary.BigEndian.Uint32(header[8:])
	switch {
	case [4]byte(header[:4]) != magic:
		return nil, fmt.Errorf("%w: it begins with %q; is verbena perf running at the other end?", ErrProtocol, header[:4])
	case version != Version:
		return nil, fmt.Errorf("%w: the other end speaks version %d of the protocol, this one %d; use the same release at both ends", ErrProtocol, version, Version)
	case length > MaxPayload:
		return nil, fmt.Errorf("%w: a %v of %d bytes, longer than the limit of %d", ErrProtocol, kind, length, MaxPayload)
	}
	m := kind.message()
	if m == nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, kind)
	}
	// Allocate as data arrives: the announced length may be a lie.
	payload, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err == nil && len(payload) < int(length) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: a %v: %w", ErrProtocol, kind, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: extra data after the object of a %v", ErrProtocol, kind)
	}
	return m, nil
}
