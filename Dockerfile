# An image with verbena and its libraries, for images with programs that use libibverbs or librdmacm:
#   FROM verbena
#   USER root
#   RUN apt-get update && apt-get install -y --no-install-recommends perftest
#   USER 1000
FROM golang:1.26-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libibverbs-dev librdmacm-dev pkg-config
COPY . /verbena
RUN make -C /verbena install PREFIX=/usr/local DESTDIR=/image

FROM debian:bookworm-slim
COPY --from=build /image/usr/local /usr/local
USER 1000
ENTRYPOINT ["verbena", "run"]
CMD ["-h"]
