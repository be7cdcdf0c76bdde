package rules

import "github.com/verbena-rdma/verbena/verbs"

type step struct{ from, to verbs.QPState }

type attrs struct{ required, optional verbs.QPAttrMask }

const (
	pkey    = verbs.QPAttrPKeyIndex
	port    = verbs.QPAttrPort
	access  = verbs.QPAttrAccess
	qkey    = verbs.QPAttrQKey
	address = verbs.QPAttrAddress
	path    = verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	rnr     = verbs.QPAttrMinRNRTimer
	retries = verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry
)

// The attributes of each transition, besides the state itself (IBTA 11.2.4.2, table 91;
// ibv_modify_qp(3)). Any state can go to Reset, and any but Reset to Error; these two take no
// attributes.
var transitions = [...]map[step]attrs{
	verbs.RC: rc,
	verbs.UC: {
		{verbs.QPReset, verbs.QPInitialized}:                 {required: pkey | port | access},
		{verbs.QPInitialized, verbs.QPInitialized}:           {optional: pkey | port | access},
		{verbs.QPInitialized, verbs.QPReadyToReceive}:        {required: path, optional: pkey | access},
		{verbs.QPReadyToReceive, verbs.QPReadyToSend}:        {required: verbs.QPAttrSQPSN, optional: access},
		{verbs.QPReadyToSend, verbs.QPReadyToSend}:           {optional: access},
		{verbs.QPReadyToSend, verbs.QPSendQueueDrained}:      {},
		{verbs.QPSendQueueDrained, verbs.QPReadyToSend}:      {optional: access},
		{verbs.QPSendQueueDrained, verbs.QPSendQueueDrained}: {optional: pkey | access | address},
		{verbs.QPSendQueueError, verbs.QPReadyToSend}:        {optional: access},
	},
	verbs.UD: {
		{verbs.QPReset, verbs.QPInitialized}:                 {required: pkey | port | qkey},
		{verbs.QPInitialized, verbs.QPInitialized}:           {optional: pkey | port | qkey},
		{verbs.QPInitialized, verbs.QPReadyToReceive}:        {optional: pkey | qkey},
		{verbs.QPReadyToReceive, verbs.QPReadyToSend}:        {required: verbs.QPAttrSQPSN, optional: qkey},
		{verbs.QPReadyToSend, verbs.QPReadyToSend}:           {optional: qkey},
		{verbs.QPReadyToSend, verbs.QPSendQueueDrained}:      {},
		{verbs.QPSendQueueDrained, verbs.QPReadyToSend}:      {optional: qkey},
		{verbs.QPSendQueueDrained, verbs.QPSendQueueDrained}: {optional: pkey | qkey},
		{verbs.QPSendQueueError, verbs.QPReadyToSend}:        {optional: qkey},
	},
	// The states of UD without SQE: an error ends only its own request
	// (efadv_create_qp_ex(3)).
	verbs.SRD: {
		{verbs.QPReset, verbs.QPInitialized}:                 {required: pkey | port | qkey},
		{verbs.QPInitialized, verbs.QPInitialized}:           {optional: pkey | port | qkey},
		{verbs.QPInitialized, verbs.QPReadyToReceive}:        {optional: pkey | qkey},
		{verbs.QPReadyToReceive, verbs.QPReadyToSend}:        {required: verbs.QPAttrSQPSN, optional: qkey | verbs.QPAttrRNRRetry},
		{verbs.QPReadyToSend, verbs.QPReadyToSend}:           {optional: qkey},
		{verbs.QPReadyToSend, verbs.QPSendQueueDrained}:      {},
		{verbs.QPSendQueueDrained, verbs.QPReadyToSend}:      {optional: qkey},
		{verbs.QPSendQueueDrained, verbs.QPSendQueueDrained}: {optional: pkey | qkey},
	},
	verbs.XRCSend: half(rnr | verbs.QPAttrMaxDestReadAtomic),
	verbs.XRCRecv: half(verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxInitReadAtomic),
}

var rc = map[step]attrs{
	{verbs.QPReset, verbs.QPInitialized}:            {required: pkey | port | access},
	{verbs.QPInitialized, verbs.QPInitialized}:      {optional: pkey | port | access},
	{verbs.QPInitialized, verbs.QPReadyToReceive}:   {required: path | verbs.QPAttrMaxDestReadAtomic | rnr, optional: pkey | access},
	{verbs.QPReadyToReceive, verbs.QPReadyToSend}:   {required: retries | verbs.QPAttrSQPSN | verbs.QPAttrMaxInitReadAtomic, optional: access | rnr},
	{verbs.QPReadyToSend, verbs.QPReadyToSend}:      {optional: access | rnr},
	{verbs.QPReadyToSend, verbs.QPSendQueueDrained}: {},
	{verbs.QPSendQueueDrained, verbs.QPReadyToSend}: {optional: access | rnr},
	{verbs.QPSendQueueDrained, verbs.QPSendQueueDrained}: {
		optional: pkey | port | access | address | retries | rnr | verbs.QPAttrMaxInitReadAtomic | verbs.QPAttrMaxDestReadAtomic,
	},
}

// half returns the attributes of one end of XRC: those of RC, where the ones of the half that it
// lacks are optional, since programs such as perftest give them.
func half(lacks verbs.QPAttrMask) map[step]attrs {
	rows := make(map[step]attrs)
	for step, a := range rc {
		rows[step] = attrs{a.required &^ lacks, a.optional | a.required&lacks}
	}
	return rows
}
