package verbs

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t,
		&AddressAttr{}, &CMDial{}, &CMError{}, &CMEvent{}, new(CMEventType), &CMJoin{}, &CMListen{}, &CMParam{},
		new(CMRejectReason), new(CMStep), &CQInit{}, &Counter{}, &DMABuf{}, &DeviceAttr{}, &DeviceInfo{}, &Event{},
		new(EventType), new(GID), &GIDEntry{}, new(GIDType), &GRH{}, new(LinkLayer), new(MTU), &MWBind{},
		new(MWTypes), new(Opcode), new(Path), &PortAttr{}, new(PortState), &QPAttr{}, &QPInit{}, new(QPState),
		new(QPType), &RecvWR{}, &SGE{}, &SRDAttr{}, &SRQInit{}, &SendWR{}, new(Status), new(Transports),
		&WC{}, &WCExtra{}, new(WCFields), new(WCOpcode))
}
