package attack

// attackCases are the attacks.
var attackCases []attackCase

func attackCaseOf(name string) *attackCase {
	for i := range attackCases {
		if attackCases[i].name == name {
			return &attackCases[i]
		}
	}
	panic("no attack has the name " + name)
}

func init() {
	refused := []string{"rx_wrong_source", "rx_socket_drops"} // a filter may be left from the case before
	all := []forgery{naks, acks, notReady, responses, sends, writes, atomics, notifications}
	attackCases = []attackCase{
		{
			name: "forged sends", description: "SENDs to every end, all numbers known, from the peer's address and another port",
			forges: []forgery{sends}, counters: refused,
		},
		{
			name: "forged writes", description: "the same with WRITEs and the right key",
			forges: []forgery{writes}, counters: refused,
		},
		{
			name: "forged atomics", description: "the same with fetch-and-adds and the right key",
			forges: []forgery{atomics}, counters: refused,
		},
		{
			name: "forged responses", description: "the same with responses to reads",
			forges: []forgery{responses}, counters: refused,
		},
		{
			name: "forged NAKs", description: "the same with NAKs",
			forges: []forgery{naks}, counters: refused,
		},
		{
			name: "forged ACKs", description: "the same with acknowledgements",
			forges: []forgery{acks}, counters: refused,
		},
		{
			name: "forged patience", description: "the same with receiver-not-ready NAKs of 655 ms",
			forges: []forgery{notReady}, counters: refused,
		},
		{
			name: "forged CNPs", description: "the same with congestion notifications",
			forges: []forgery{notifications}, counters: refused,
		},
		{
			name: "forged of every kind", description: "the same with all of these packets",
			forges: all, counters: refused,
		},
		{
			name: "forged with packet info", description: "all of these, from the peer's address and port by IP_PKTINFO",
			from: byPacketInfo, forges: all,
		},
		{
			name: "sequence numbers guessed", description: "the same with SENDs with random sequence numbers",
			run: guessNumbers(sends, true),
		},
		{
			name: "queue pairs guessed", description: "the same with SENDs with random queue pairs and sequence numbers",
			run: guessNumbers(sends, false), counters: []string{"rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "connected by address", description: "all of these, to connections made by the connection manager",
			scenario: scenario{connectBy: byAddress}, forges: all, counters: refused,
		},
		{
			name: "shared memory", description: "all of these by UDP, to connections whose packets go through shared memory",
			scenario: scenario{connectBy: byMemory}, forges: all, counters: refused,
		},
		{
			name: "impersonation by the same user", description: "a process opens shared memory with a device and pretends to be its peer, which has none",
			// Connections whose packets went to the attacker fail when its process ends.
			scenario: scenario{connectBy: byHalfMemory}, from: bySameUser, run: impersonate, allowed: []harm{impersonated, ended}, required: []harm{impersonated},
		},
		{
			name: "impersonation by another user", description: "the same as another user",
			scenario: scenario{connectBy: byHalfMemory}, run: impersonate,
		},
		{
			name: "impersonation between containers", description: "the same as the same user, each process in its own PID namespace",
			scenario: scenario{connectBy: byHalfMemory, topology: containers}, from: bySameUser, run: impersonate,
		},
		{
			name: "impersonation from a container", description: "the same as the same user, in a PID namespace below that of the victims",
			scenario: scenario{connectBy: byHalfMemory, topology: container}, from: bySameUser, run: impersonate,
		},
		{
			name: "impersonation by an unmapped user", description: "the same as another user; the victims' user namespaces map neither",
			scenario: scenario{connectBy: byHalfMemory, topology: unmapped}, run: impersonate,
		},
		{
			name: "sparse memory", description: "a peer exports memory without allocated pages, and writes from it",
			scenario: scenario{connectBy: byHalfMemory}, from: bySameUser, run: fillMemory, counters: []string{"local_rcvd_pkts"},
		},
		{
			name: "files that linger", description: "a process sends sockets that take an hour to close to a device that is about to close",
			from: bySameUser, run: lingerFiles, once: true,
		},
		{
			name: "files that linger by another user", description: "the same as another user",
			run: lingerFiles, once: true,
		},
		{
			name: "files that linger in the registry", description: "a process sends such sockets to the entry by which dials find a listener",
			scenario: scenario{connectBy: byAddress}, run: lingerInRegistry, once: true,
		},
		{
			name: "forged datagrams", description: "UD messages in the name of the peer",
			scenario: scenario{connectBy: byUD}, run: forgeDatagrams,
		},
		{
			name: "forged scalable datagrams", description: "SRD messages in the name of the peer, with the tokens of both",
			scenario: scenario{connectBy: bySRD}, run: forgeDatagrams,
		},
		{
			name: "flood of bytes", description: "random bytes, wrong ICRCs, unknown queue pairs, other services",
			run: floodBytes, counters: []string{"rx_icrc_errors", "rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "flood of requests", description: "connection requests that are never completed",
			scenario: scenario{connectBy: byAddress}, from: byOwnAddress, run: floodRequests, counters: []string{"cm_rx_no_room", "cm_rx_rate_limited", "cm_expired"},
		},
		{
			name: "flood of messages", description: "random bytes to the connection managers",
			scenario: scenario{connectBy: byAddress}, from: byOwnAddress, run: floodMessages, counters: []string{"cm_rx_malformed", "cm_rx_rate_limited"},
		},
		{
			name: "places held", description: "one address holds all places that it gets with requests, and completes none; a newcomer dials",
			scenario: scenario{connectBy: byAddress}, from: byOwnAddress, run: holdPlaces, once: true,
		},
		{
			name: "old reads", description: "a peer tries keys in READs with old sequence numbers",
			run: guessWithOldReads, counters: []string{"rx_duplicates_refused"},
		},
		{
			name: "keys guessed", description: "a peer tries keys, and connects again after each wrong one",
			run: guessAndReconnect, counters: []string{"rx_accesses_limited"},
		},
		{
			name: "reads and silence", description: "a peer requests 40 reads of 256 MiB, and sends nothing else",
			run: readAndFallSilent,
		},
		{
			name: "never ready", description: "a peer answers all messages with the longest receiver-not-ready NAK",
			run: neverReady, counters: []string{"rcvd_rnr_err"},
		},
		{
			name: "nonsense", description: "a peer sends every opcode with wrong lengths, keys, addresses and sequence numbers",
			run: nonsense,
		},
		{
			name: "ready words", description: "a peer writes to the ready words of other connections",
			run: overwriteReadyWords,
		},
		{
			name: "half-open", description: "8,000 peers exchange descriptors, and never connect",
			run: stayHalfOpen,
		},
		{
			name: "descriptors", description: "malformed and truncated descriptors of connections",
			run: offerDescriptors,
		},
		{
			name: "forged with IPv6 packet info", description: "everything, from the peer's address and port by IPV6_PKTINFO",
			scenario: scenario{topology: oneHost6}, from: byPacketInfo, forges: all,
		},
		{
			name: "forged from another host", description: "everything, from an address of another host",
			scenario: scenario{topology: hosts}, from: byOwnAddress, forges: all, counters: []string{"rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "spoofed", description: "everything, from another host that chooses source address and port, all numbers known",
			scenario: scenario{topology: hosts}, from: bySpoofing, forges: all, allowed: []harm{injected, ended},
		},
		{
			name: "spoofed SENDs guessed", description: "the same with SENDs with random sequence numbers",
			scenario: scenario{topology: hosts}, from: bySpoofing, run: guessNumbers(sends, true), allowed: []harm{injected, ended},
		},
		{
			name: "spoofed NAKs guessed", description: "the same with NAKs with random sequence numbers",
			scenario: scenario{topology: hosts}, from: bySpoofing, run: guessNumbers(naks, true), allowed: []harm{ended},
		},
		{
			name: "ICMP unreachable", description: "forged ICMP errors: nobody listens at the peer's port",
			scenario: scenario{topology: hosts}, from: bySpoofing, run: icmp(3, 0), counters: []string{"rx_icmp_unreachable"},
		},
		{
			name: "ICMP too big", description: "forged ICMP errors: the path takes packets of 576 bytes at most",
			scenario: scenario{topology: hosts}, from: bySpoofing, run: icmp(4, 576),
		},
		{
			name: "places held from another host", description: "the same from an address of another host",
			scenario: scenario{connectBy: byAddress, topology: hosts}, from: byOwnAddress, run: holdPlaces, once: true,
		},
		{
			name: "spoofed requests", description: "connection requests from 64 hosts that do not exist",
			scenario: scenario{connectBy: byAddress, topology: hosts}, from: bySpoofing, run: floodRequests,
		},
	}
	for i := range attackCases {
		if attackCases[i].forges != nil {
			attackCases[i].run = forge
		}
	}
}
