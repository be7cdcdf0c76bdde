/* Stands for libverbena.so and libverbena-device.so. */
#ifdef VERSION
const char verbena_version[] = VERSION;
#endif
#ifdef NEWER
int libverbena_newer(void) { return 43; }
#endif
#ifdef NEEDED
extern int needed(void);
int libverbena(void) { return needed(); }
#else
int libverbena(void) { return 42; }
#endif
