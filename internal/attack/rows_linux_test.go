package attack

// rows are the attacks. The findings of their holes are those of docs/security.md.
var rows []row

func rowOf(name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	panic("no attack has the name " + name)
}

// forgeable are the holes of attacks whose packets pass for the peer's.
var forgeable = []hole{{injected, 3, true}, {ended, 3, false}}

func init() {
	all := forge(naks, acks, notReady, responses, sends, writes, atomics, notifications)
	rows = []row{
		{
			name: "forged sends", does: "SENDs to every end, all numbers known, from the peer's address and another port",
			run: forge(sends), holes: forgeable,
		},
		{
			name: "forged writes", does: "WRITEs likewise, with the key",
			run: forge(writes), holes: forgeable,
		},
		{
			name: "forged atomics", does: "fetch-and-adds likewise, with the key",
			run: forge(atomics), holes: forgeable,
		},
		{
			name: "forged responses", does: "responses to reads likewise",
			run: forge(responses), holes: []hole{{injected, 3, false}, {ended, 3, false}},
		},
		{
			name: "forged NAKs", does: "NAKs likewise",
			run: forge(naks), holes: []hole{{ended, 3, true}},
		},
		{
			name: "forged ACKs", does: "acknowledgements likewise",
			run: forge(acks), holes: []hole{{injected, 3, false}, {ended, 3, false}},
		},
		{
			name: "forged patience", does: "receiver-not-ready NAKs of 655 ms likewise",
			run: forge(notReady), holes: []hole{{ended, 3, false}},
		},
		{
			name: "forged CNPs", does: "congestion notifications likewise",
			run: forge(notifications),
		},
		{
			name: "forged with packet info", does: "all of these, from the peer's address and port by IP_PKTINFO",
			from: byPacketInfo, run: all, holes: forgeable,
		},
		{
			name: "numbers guessed", does: "SENDs and NAKs to the right queue pairs with random sequence numbers",
			run: guessNumbers(true), holes: []hole{{injected, 3, false}, {ended, 3, false}},
		},
		{
			name: "queue pairs guessed", does: "SENDs and NAKs to random queue pairs with random sequence numbers",
			run: guessNumbers(false), counted: []string{"rx_wrong_peer"},
		},
		{
			name: "connected by address", does: "all of these, to connections made by the connection manager",
			scene: scene{how: byAddress}, run: all, holes: forgeable,
		},
		{
			name: "shared memory", does: "all of these by UDP, to connections whose packets go through shared memory",
			scene: scene{how: byMemory}, run: all, holes: forgeable,
		},
		{
			name: "forged datagrams", does: "UD messages in the name of the peer",
			scene: scene{how: byUD}, run: forgeDatagrams, holes: []hole{{injected, 3, true}},
		},
		{
			name: "forged scalable datagrams", does: "SRD messages in the name of the peer, with the tokens of both",
			scene: scene{how: bySRD}, run: forgeDatagrams, holes: []hole{{injected, 3, false}, {ended, 3, false}},
		},
		{
			name: "forged with IPv6 packet info", does: "everything, from the peer's address and port by IPV6_PKTINFO",
			scene: scene{place: oneHost6}, from: byPacketInfo, run: all, holes: forgeable,
		},
		{
			name: "forged from another host", does: "everything, from an address of another host",
			scene: scene{place: hosts}, from: byOwnAddress, run: all, counted: []string{"rx_wrong_peer"},
		},
		{
			name: "spoofed", does: "everything, from another host that chooses source address and port, all numbers known",
			scene: scene{place: hosts}, from: bySpoofing, run: all, may: []harm{injected, ended},
		},
	}
}
