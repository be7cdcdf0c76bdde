//go:build linux && cgo && verbs

#include "callbacks.h"
#include "../../../internal/version/version.h"

const char verbena_version[] = VERBENA_VERSION;

static struct vd_callbacks callbacks;

void vd_set_callbacks(struct vd_callbacks *given)
{
	callbacks = *given;
}

void vd_completion(void *cq)
{
	callbacks.completion(cq);
}

void vd_event(void *context, int type, void *element, int port)
{
	callbacks.event(context, type, element, port);
}

void *vd_cm_event(struct vd_cm_event *event)
{
	return callbacks.cm_event(event);
}
