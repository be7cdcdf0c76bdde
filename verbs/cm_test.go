package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestCMError(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("[2001:db8::2]:7174")
	for want, err := range map[string]*verbs.CMError{
		"connect to [2001:db8::2]:7174 from 192.0.2.1:40000: nobody listens on that port": {
			Step: verbs.CMStepConnect, Reason: verbs.CMRejectInvalidServiceID, Err: verbs.ErrNotListening},
		"connect to [2001:db8::2]:7174 from 192.0.2.1:40000: rejected by the peer: by its application": {
			Step: verbs.CMStepConnect, Reason: verbs.CMRejectConsumer, Err: verbs.ErrRejected, PrivateData: []byte("not\nprintable")},
		`connect to [2001:db8::2]:7174 from 192.0.2.1:40000: rejected by the peer: by its application, which says "no \"room\""`: {
			Step: verbs.CMStepConnect, Reason: verbs.CMRejectConsumer, Err: verbs.ErrRejected, PrivateData: []byte("no \"room\"\x00\x00")},
		"accept [2001:db8::2]:7174 from 192.0.2.1:40000: rejected by the peer: primary LID rejected": {
			Step: verbs.CMStepAccept, Reason: 13, Err: verbs.ErrRejected},
		"resolve [2001:db8::2]:7174 from 192.0.2.1:40000: no route from this device": {
			Step: verbs.CMStepResolve, Err: verbs.ErrNoRoute},
	} {
		err.Local, err.Remote = local, remote
		assert.EqualError(t, err, want)
		assert.ErrorIs(t, err, err.Err)
	}
	for _, local := range []netip.AddrPort{{}, netip.MustParseAddrPort("0.0.0.0:0")} {
		err := &verbs.CMError{Step: verbs.CMStepResolve, Local: local, Remote: remote, Err: verbs.ErrNoRoute}
		assert.EqualError(t, err, "resolve [2001:db8::2]:7174: no route from this device")
	}
	assert.Equal(t, "time-wait exit", verbs.CMTimewaitExit.String())
	assert.Equal(t, "device removed", verbs.CMDeviceRemoved.String())
	assert.Equal(t, "connection event 99", verbs.CMEventType(99).String())
}
