// What providers use of libibverbs.
//
// perftest and pyverbs are linked with the providers of some adapters, libmlx5 and libefa, which
// are linked with private functions of libibverbs. Where this library takes its place, it must
// have them for these programs to start. No device here belongs to a provider, so none of them
// has anything to do.

#include <errno.h>

#include "verbena.h"

// This is a variable in libibverbs, which writes to it where both libraries are in a process.
VB_EXPORT bool verbs_allow_disassociate_destroy;

static int refuse(void)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

#define PRIVATE(name) VB_EXPORT __attribute__((alias("refuse"))) int name(void)

PRIVATE(__ioctl_final_num_attrs);
PRIVATE(__verbs_log);
PRIVATE(_verbs_init_and_alloc_context);
PRIVATE(execute_ioctl);
PRIVATE(ibv_cmd_advise_mr);
PRIVATE(ibv_cmd_alloc_dm);
PRIVATE(ibv_cmd_alloc_mw);
PRIVATE(ibv_cmd_alloc_pd);
PRIVATE(ibv_cmd_attach_mcast);
PRIVATE(ibv_cmd_close_xrcd);
PRIVATE(ibv_cmd_create_ah);
PRIVATE(ibv_cmd_create_counters);
PRIVATE(ibv_cmd_create_cq);
PRIVATE(ibv_cmd_create_cq_ex);
PRIVATE(ibv_cmd_create_cq_ex2);
PRIVATE(ibv_cmd_create_flow);
PRIVATE(ibv_cmd_create_flow_action_esp);
PRIVATE(ibv_cmd_create_qp);
PRIVATE(ibv_cmd_create_qp_ex);
PRIVATE(ibv_cmd_create_qp_ex2);
PRIVATE(ibv_cmd_create_rwq_ind_table);
PRIVATE(ibv_cmd_create_srq);
PRIVATE(ibv_cmd_create_srq_ex);
PRIVATE(ibv_cmd_create_wq);
PRIVATE(ibv_cmd_dealloc_mw);
PRIVATE(ibv_cmd_dealloc_pd);
PRIVATE(ibv_cmd_dereg_mr);
PRIVATE(ibv_cmd_destroy_ah);
PRIVATE(ibv_cmd_destroy_counters);
PRIVATE(ibv_cmd_destroy_cq);
PRIVATE(ibv_cmd_destroy_flow);
PRIVATE(ibv_cmd_destroy_flow_action);
PRIVATE(ibv_cmd_destroy_qp);
PRIVATE(ibv_cmd_destroy_rwq_ind_table);
PRIVATE(ibv_cmd_destroy_srq);
PRIVATE(ibv_cmd_destroy_wq);
PRIVATE(ibv_cmd_detach_mcast);
PRIVATE(ibv_cmd_free_dm);
PRIVATE(ibv_cmd_get_context);
PRIVATE(ibv_cmd_modify_cq);
PRIVATE(ibv_cmd_modify_flow_action_esp);
PRIVATE(ibv_cmd_modify_qp);
PRIVATE(ibv_cmd_modify_qp_ex);
PRIVATE(ibv_cmd_modify_srq);
PRIVATE(ibv_cmd_modify_wq);
PRIVATE(ibv_cmd_open_qp);
PRIVATE(ibv_cmd_open_xrcd);
PRIVATE(ibv_cmd_poll_cq);
PRIVATE(ibv_cmd_post_recv);
PRIVATE(ibv_cmd_post_send);
PRIVATE(ibv_cmd_post_srq_recv);
PRIVATE(ibv_cmd_query_context);
PRIVATE(ibv_cmd_query_device_any);
PRIVATE(ibv_cmd_query_mr);
PRIVATE(ibv_cmd_query_port);
PRIVATE(ibv_cmd_query_qp);
PRIVATE(ibv_cmd_query_srq);
PRIVATE(ibv_cmd_read_counters);
PRIVATE(ibv_cmd_reg_dm_mr);
PRIVATE(ibv_cmd_reg_dmabuf_mr);
PRIVATE(ibv_cmd_reg_mr);
PRIVATE(ibv_cmd_req_notify_cq);
PRIVATE(ibv_cmd_rereg_mr);
PRIVATE(ibv_cmd_resize_cq);
PRIVATE(ibv_copy_ah_attr_from_kern); // these four are for librdmacm
PRIVATE(ibv_copy_path_rec_from_kern);
PRIVATE(ibv_copy_path_rec_to_kern);
PRIVATE(ibv_copy_qp_attr_from_kern);
PRIVATE(ibv_read_ibdev_sysfs_file);
PRIVATE(ibv_register_driver);
PRIVATE(verbs_init_cq);
PRIVATE(verbs_open_device);
PRIVATE(verbs_register_driver_34);
PRIVATE(verbs_set_ops);
PRIVATE(verbs_uninit_context);
