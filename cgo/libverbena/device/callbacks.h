#ifndef VERBENA_CALLBACKS_H
#define VERBENA_CALLBACKS_H

#include "device.h"

// The callbacks of the C half, for Go.
void vd_set_callbacks(struct vd_callbacks *callbacks);
void vd_completion(void *cq);
void vd_event(void *context, int type, void *element, int port);
void *vd_cm_event(struct vd_cm_event *event);

#endif
