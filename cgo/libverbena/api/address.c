// Address handles.

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

VB_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof *ah);
	int error = ah ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.create_ah(pd->handle, attr, &ah->handle);
	if (error) {
		free(ah);
		return vb_fail(error);
	}
	ah->context = pd->context;
	ah->pd = pd;
	return ah;
}

VB_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_AH, ah->handle);
	if (!error)
		free(ah);
	return error;
}

// ip4_header is an IPv4 header without options (RFC 791). On RoCEv2 over IPv4 it is in the last
// 20 bytes of the GRH (IBTA annex A17.4.5.2).
struct ip4_header {
	uint8_t version_length, traffic_class;
	uint16_t length, id, fragment;
	uint8_t time_to_live, protocol;
	uint16_t checksum;
	uint32_t source, destination;
};

static uint16_t sum16(const void *data, size_t size)
{
	const uint16_t *words = data;
	uint32_t sum = 0;

	for (size_t i = 0; i < size / 2; i++)
		sum += words[i];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static void mapped(union ibv_gid *gid, uint32_t address)
{
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, &address, sizeof address);
}

// read_header stores where a datagram came from and went to, and the rest of the way back. It
// returns an errno.
static int read_header(const struct ibv_grh *grh, union ibv_gid *source, union ibv_gid *destination, struct ibv_global_route *route)
{
	struct ip4_header ip4;
	uint32_t first = ntohl(grh->version_tclass_flow);

	memcpy(&ip4, (const char *)grh + sizeof *grh - sizeof ip4, sizeof ip4);
	if (ip4.version_length == 0x45 && sum16(&ip4, sizeof ip4) == 0xffff) {
		mapped(source, ip4.source);
		mapped(destination, ip4.destination);
		route->traffic_class = ip4.traffic_class;
	} else if (first >> 28 == 6) {
		*source = grh->sgid;
		*destination = grh->dgid;
		route->traffic_class = first >> 20;
		route->flow_label = first & IB_GRH_FLOWLABEL_MASK;
	} else {
		return EINVAL;
	}
	route->hop_limit = 0xff;
	return 0;
}

// source_index returns the index of the GID from which to answer a message: the one that the message
// was sent to or, for a message to a multicast group, the first one of the sender's family. It
// returns -1 if there is none.
static int source_index(const struct ibv_gid_entry *entries, size_t count, const union ibv_gid *to, const union ibv_gid *sender)
{
	for (size_t i = 0; i < count; i++)
		if (memcmp(&entries[i].gid, to, sizeof *to) == 0)
			return entries[i].gid_index;
	for (size_t i = 0; i < count; i++)
		if (memcmp(&entries[i].gid, sender, 12) == 0 || entries[i].gid.raw[10] != 0xff)
			return entries[i].gid_index;
	return -1;
}

VB_EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	struct ibv_gid_entry *entries;
	union ibv_gid own;
	size_t count;
	int index;
	int error = EINVAL; // RoCE has no messages without a GRH

	memset(attr, 0, sizeof *attr);
	attr->port_num = port;
	if (wc->slid) {
		attr->dlid = wc->slid;
		attr->static_rate = VD_HAS_UDP_PORT;
	}
	if (wc->wc_flags & IBV_WC_GRH)
		error = read_header(grh, &attr->grh.dgid, &own, &attr->grh);
	if (!error)
		error = vb_gid_table(context, port, &entries, &count);
	if (error) {
		errno = error;
		return -1;
	}
	index = source_index(entries, count, &own, &attr->grh.dgid);
	free(entries);
	if (index < 0) {
		errno = ENODATA;
		return -1;
	}
	attr->is_global = 1;
	attr->grh.sgid_index = index;
	return 0;
}

VB_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

// The system finds Ethernet addresses when a packet is sent.
VB_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	(void)context, (void)attr, (void)mac, (void)vid;
	errno = EOPNOTSUPP;
	return -1;
}
