package attack

// rows are the attacks.
var rows []row

func rowOf(name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	panic("no attack has the name " + name)
}

func init() {
	refused := []string{"rx_wrong_source", "rx_socket_drops"} // a filter may be there from the row before
	all := []forgery{naks, acks, notReady, responses, sends, writes, atomics, notifications}
	rows = []row{
		{
			name: "forged sends", does: "SENDs to every end, all numbers known, from the peer's address and another port",
			forges: []forgery{sends}, counted: refused,
		},
		{
			name: "forged writes", does: "WRITEs likewise, with the key",
			forges: []forgery{writes}, counted: refused,
		},
		{
			name: "forged atomics", does: "fetch-and-adds likewise, with the key",
			forges: []forgery{atomics}, counted: refused,
		},
		{
			name: "forged responses", does: "responses to reads likewise",
			forges: []forgery{responses}, counted: refused,
		},
		{
			name: "forged NAKs", does: "NAKs likewise",
			forges: []forgery{naks}, counted: refused,
		},
		{
			name: "forged ACKs", does: "acknowledgements likewise",
			forges: []forgery{acks}, counted: refused,
		},
		{
			name: "forged patience", does: "receiver-not-ready NAKs of 655 ms likewise",
			forges: []forgery{notReady}, counted: refused,
		},
		{
			name: "forged CNPs", does: "congestion notifications likewise",
			forges: []forgery{notifications}, counted: refused,
		},
		{
			name: "forged of every kind", does: "all of these likewise",
			forges: all, counted: refused,
		},
		{
			name: "forged with packet info", does: "all of these, from the peer's address and port by IP_PKTINFO",
			from: byPacketInfo, forges: all,
		},
		{
			name: "sequence numbers guessed", does: "SENDs likewise, but with random sequence numbers",
			run: guessNumbers(sends, true),
		},
		{
			name: "queue pairs guessed", does: "SENDs likewise, but with random queue pairs and sequence numbers",
			run: guessNumbers(sends, false), counted: []string{"rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "connected by address", does: "all of these, to connections made by the connection manager",
			scene: scene{how: byAddress}, forges: all, counted: refused,
		},
		{
			name: "shared memory", does: "all of these by UDP, to connections whose packets go through shared memory",
			scene: scene{how: byMemory}, forges: all, counted: refused,
		},
		{
			name: "impersonation by the same user", does: "a process joins the shared memory of a device in the name of its peer, which has none",
			// Connections whose packets went to the attacker fail when its process ends.
			scene: scene{how: byHalfMemory}, from: bySameUser, run: impersonate, may: []harm{impersonated, ended}, must: []harm{impersonated},
		},
		{
			name: "impersonation by another user", does: "likewise, as another user",
			scene: scene{how: byHalfMemory}, run: impersonate,
		},
		{
			name: "impersonation between containers", does: "likewise, as the same user, all in PID namespaces of their own",
			scene: scene{how: byHalfMemory, place: containers}, from: bySameUser, run: impersonate,
		},
		{
			name: "impersonation from a container", does: "likewise, as the same user, in a PID namespace below that of the victims",
			scene: scene{how: byHalfMemory, place: container}, from: bySameUser, run: impersonate,
		},
		{
			name: "impersonation by an unmapped user", does: "likewise, as another user, neither of which the victims' user namespaces map",
			scene: scene{how: byHalfMemory, place: unmapped}, run: impersonate,
		},
		{
			name: "sparse memory", does: "a peer shows memory of which it has allocated nothing, and writes from it",
			scene: scene{how: byHalfMemory}, from: bySameUser, run: fillMemory, counted: []string{"local_rcvd_pkts"},
		},
		{
			name: "files that linger", does: "a process sends sockets that take an hour to close to a device that is about to close",
			from: bySameUser, run: lingerFiles, once: true,
		},
		{
			name: "files that linger by another user", does: "likewise, as another user",
			run: lingerFiles, once: true,
		},
		{
			name: "forged datagrams", does: "UD messages in the name of the peer",
			scene: scene{how: byUD}, run: forgeDatagrams,
		},
		{
			name: "forged scalable datagrams", does: "SRD messages in the name of the peer, with the tokens of both",
			scene: scene{how: bySRD}, run: forgeDatagrams,
		},
		{
			name: "flood of bytes", does: "random bytes, wrong ICRCs, unknown queue pairs, other services",
			run: floodBytes, counted: []string{"rx_icrc_errors", "rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "flood of requests", does: "requests for connections that nobody completes",
			scene: scene{how: byAddress}, from: byOwnAddress, run: floodRequests, counted: []string{"cm_rx_no_room", "cm_rx_rate_limited", "cm_expired"},
		},
		{
			name: "flood of messages", does: "random bytes to the connection managers",
			scene: scene{how: byAddress}, from: byOwnAddress, run: floodMessages, counted: []string{"cm_rx_malformed", "cm_rx_rate_limited"},
		},
		{
			name: "old reads", does: "a peer tries keys in READs whose sequence number has been",
			run: guessWithOldReads, counted: []string{"rx_duplicates_refused"},
		},
		{
			name: "keys guessed", does: "a peer tries keys, and connects again after each that is wrong",
			run: guessAndReconnect, counted: []string{"rx_accesses_limited"},
		},
		{
			name: "reads and silence", does: "a peer reads 40 times 256 MiB, and never speaks again",
			run: readAndFallSilent,
		},
		{
			name: "never ready", does: "a peer answers all messages with the longest receiver-not-ready NAK",
			run: neverReady, counted: []string{"rcvd_rnr_err"},
		},
		{
			name: "nonsense", does: "a peer sends every opcode with wrong lengths, keys, addresses and places",
			run: nonsense,
		},
		{
			name: "ready words", does: "a peer writes to the ready words of other connections",
			run: overwriteReadyWords,
		},
		{
			name: "half-open", does: "8,000 peers exchange descriptors, and never connect",
			run: stayHalfOpen,
		},
		{
			name: "descriptors", does: "descriptors of connections that lie, or are cut short",
			run: offerDescriptors,
		},
		{
			name: "forged with IPv6 packet info", does: "everything, from the peer's address and port by IPV6_PKTINFO",
			scene: scene{place: oneHost6}, from: byPacketInfo, forges: all,
		},
		{
			name: "forged from another host", does: "everything, from an address of another host",
			scene: scene{place: hosts}, from: byOwnAddress, forges: all, counted: []string{"rx_wrong_peer", "rx_socket_drops"},
		},
		{
			name: "spoofed", does: "everything, from another host that chooses source address and port, all numbers known",
			scene: scene{place: hosts}, from: bySpoofing, forges: all, may: []harm{injected, ended},
		},
		{
			name: "spoofed SENDs guessed", does: "SENDs likewise, with random sequence numbers",
			scene: scene{place: hosts}, from: bySpoofing, run: guessNumbers(sends, true), may: []harm{injected, ended},
		},
		{
			name: "spoofed NAKs guessed", does: "NAKs likewise, with random sequence numbers",
			scene: scene{place: hosts}, from: bySpoofing, run: guessNumbers(naks, true), may: []harm{ended},
		},
		{
			name: "ICMP unreachable", does: "forged ICMP errors: nobody listens at the peer's port",
			scene: scene{place: hosts}, from: bySpoofing, run: icmp(3, 0), counted: []string{"rx_icmp_unreachable"},
		},
		{
			name: "ICMP too big", does: "forged ICMP errors: the path takes packets of 576 bytes at most",
			scene: scene{place: hosts}, from: bySpoofing, run: icmp(4, 576),
		},
		{
			name: "spoofed requests", does: "requests for connections from 64 hosts that there are not",
			scene: scene{how: byAddress, place: hosts}, from: bySpoofing, run: floodRequests,
		},
	}
	for i := range rows {
		if rows[i].forges != nil {
			rows[i].run = forge
		}
	}
}
