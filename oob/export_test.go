package oob

import (
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
)

// SetOutcomeTimeout sets how long a peer that has closed its connection has to report.
func (p *Peer) SetOutcomeTimeout(d time.Duration) { p.outcomeTimeout = d }

// SetConfirmTimeout sets how long a requester by connection manager may take to confirm.
func SetConfirmTimeout(d time.Duration) (reset func()) {
	was := confirmTimeout
	confirmTimeout = d
	return func() { confirmTimeout = was }
}

// Carrier is the Carrier of a Way.
func (w Way) Carrier() Carrier { return w.carrier }

// EncodeRequest makes the private data of a request.
func EncodeRequest(from, to string, token [8]byte, index, count uint8) []byte {
	d := privateData{kind: cmRequest, token: token, index: index, count: count, to: nameSum(to)}
	d.offer.From = from
	return d.encode()
}

// EncodeReply makes the private data of a reply, with a memory map or none.
func EncodeReply(from string, m []byte) []byte {
	d := privateData{kind: cmReply, offer: descriptor.Bundle{From: from}}
	if m != nil {
		d.offer.Maps = [][]byte{m}
	}
	return d.encode()
}

// EncodeReport makes the private data of a requester's report.
func EncodeReport(ok bool) []byte { return (&privateData{kind: cmReport, ok: ok}).encode() }

// EncodeRejection makes the private data of a rejection.
func EncodeRejection(busy bool, text string) []byte {
	d := privateData{kind: cmRefused, text: text}
	if busy {
		d.kind = cmBusy
	}
	return d.encode()
}

// EncodeOtherNames makes that of a rejection by another program.
func EncodeOtherNames(name, peer string) []byte { return wrongNames(Ends{Name: name, Peer: peer}) }

// DecodeRejection takes the private data of a rejection apart.
func DecodeRejection(b []byte) (busy bool, text string, err error) {
	d, err := decodePrivateData(b)
	if err == nil && d.kind != cmBusy && d.kind != cmRefused {
		err = d.unexpected()
	}
	if err != nil {
		return false, "", err
	}
	return d.kind == cmBusy, d.text, nil
}

// DecodeOtherNames takes that of a rejection by another program apart.
func DecodeOtherNames(b []byte) (name, peer string, err error) {
	d, err := decodePrivateData(b)
	if err == nil && d.kind != cmWrongNames {
		err = d.unexpected()
	}
	if err != nil {
		return "", "", err
	}
	return d.offer.From, d.offer.To, nil
}
