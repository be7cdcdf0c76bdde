package session

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

// Each end proves that it knows the secret with an HMAC-SHA256 over all earlier messages,
// which hold nonces of both ends, and over the addresses and queue pairs of the connection. So
// a proof is valid for one connection and one direction: it cannot be replayed, reflected, or
// relayed over two connections. The sender proves itself first, because it chose the receiver.
// It sends no names before the receiver has proved itself.

// MinSecret is the length of the shortest secret, in bytes. An attacker that has recorded a
// handshake can try guesses offline.
const MinSecret = 16

func token() (t proto.Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// proof computes the MAC of one end.
func proof(secret []byte, role string, hello, challenge proto.Message, sender, receiver []byte) (t proto.Token, err error) {
	if secret == nil {
		return t, nil
	}
	h, err := proto.Encode(hello)
	if err != nil {
		return t, err
	}
	c, err := proto.Encode(challenge)
	if err != nil {
		return t, err
	}
	mac := hmac.New(sha256.New, secret)
	for _, part := range [][]byte{[]byte("verbena transfer 2: " + role), h, c, sender, receiver} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		mac.Write(part)
	}
	return proto.Token(mac.Sum(nil)), nil
}

// ends returns the addresses and queue pairs of this end of a connection and of the peer's.
func ends(l *link.Link) (local, peer []byte) {
	c := l.Connection()
	a, b := c.LocalAddr().Addr().Unmap().As16(), c.PeerAddr().Addr().Unmap().As16()
	return binary.BigEndian.AppendUint32(a[:], c.QPN()), binary.BigEndian.AppendUint32(b[:], c.PeerQPN())
}

// loopback reports whether the peer is on this machine.
func loopback(l *link.Link) bool { return l.Connection().PeerAddr().Addr().Unmap().IsLoopback() }

// handshake performs the handshake of the sender.
func (s *Sender) handshake(ctx context.Context, l *link.Link) (*proto.Welcome, error) {
	ctx, stop := context.WithTimeoutCause(ctx, handshakeTimeout, errors.New("the receiver did not complete the handshake"))
	defer stop()
	hello := &proto.Hello{Version: proto.Version, Transfer: s.transfer, Nonce: token(), Secret: s.cfg.Secret != nil}
	if err := l.Send(ctx, hello); err != nil {
		return nil, err
	}
	challenge, err := expect[*proto.Challenge](ctx, l)
	switch {
	case err != nil:
		return nil, err
	case challenge.Version != proto.Version:
		return nil, faultf(proto.WrongVersion, "the receiver speaks version %d of the protocol, this program %d", challenge.Version, proto.Version)
	case hello.Secret && !challenge.Secret:
		return nil, faultf(proto.WrongSecret, "the receiver has no secret and cannot prove its identity; start it with the same --secret, or send without a secret")
	}
	local, peer := ends(l)
	mac, err := proof(s.cfg.Secret, "sender", hello, challenge, local, peer)
	if err != nil {
		return nil, err
	}
	if err := l.Send(ctx, &proto.Proof{MAC: mac}); err != nil {
		return nil, err
	}
	welcome, err := expect[*proto.Welcome](ctx, l)
	if err != nil {
		return nil, err
	}
	mac, err = proof(s.cfg.Secret, "receiver", hello, challenge, local, peer)
	if err == nil && !hmac.Equal(mac[:], welcome.MAC[:]) {
		err = faultf(proto.WrongSecret, "the receiver does not know the secret")
	}
	return welcome, err
}

// handshake performs the handshake of the receiver, up to the proof of the sender. It returns
// the receiver's proof, for the Welcome.
func (r *Receiver) handshake(ctx context.Context, l *link.Link) (*proto.Hello, proto.Token, error) {
	ctx, stop := context.WithTimeoutCause(ctx, handshakeTimeout, errors.New("the sender did not complete the handshake"))
	defer stop()
	var none proto.Token
	if err := l.Ready(ctx); err != nil {
		return nil, none, err
	}
	hello, err := expect[*proto.Hello](ctx, l)
	switch {
	case err != nil:
		return nil, none, err
	case hello.Version != proto.Version:
		return nil, none, faultf(proto.WrongVersion, "the sender speaks version %d of the protocol, the receiver %d", hello.Version, proto.Version)
	case r.cfg.Secret != nil && !hello.Secret:
		return nil, none, faultf(proto.NeedSecret, "the receiver requires a secret; send with the same --secret")
	case r.cfg.Secret == nil && hello.Secret:
		return nil, none, faultf(proto.WrongSecret, "the receiver has no secret; start it with the same --secret")
	case r.cfg.Secret == nil && !r.cfg.Insecure && !loopback(l):
		return nil, none, faultf(proto.NeedSecret, "without a secret the receiver accepts only senders on its own machine; start it with --secret or --new-secret")
	}
	challenge := &proto.Challenge{Version: proto.Version, Nonce: token(), Secret: r.cfg.Secret != nil}
	if err := l.Send(ctx, challenge); err != nil {
		return nil, none, err
	}
	answer, err := expect[*proto.Proof](ctx, l)
	if err != nil {
		return nil, none, err
	}
	local, peer := ends(l)
	want, err := proof(r.cfg.Secret, "sender", hello, challenge, peer, local)
	if err != nil {
		return nil, none, err
	}
	if !hmac.Equal(want[:], answer.MAC[:]) {
		return nil, none, faultf(proto.WrongSecret, "the sender does not know the secret")
	}
	mine, err := proof(r.cfg.Secret, "receiver", hello, challenge, peer, local)
	return hello, mine, err
}
