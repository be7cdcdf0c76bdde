package version

// Number is the version that this source tree leads to. It is a constant, since what the go
// command records differs between go build, go install and builds without git. verbena run
// compares it with that of libverbena.so and libverbena-device.so, whose C code has it from
// version.h, beside this file.
const Number = "0.1.0-dev"
