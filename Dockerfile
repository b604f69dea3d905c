# The relay in an image that has nothing but the program, the certificates of authorities, and two empty folders.
# docs/INSTALL.md says how to build and run it.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w" -o /image/agora ./cmd/agora
RUN mkdir /image/data /image/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/agora /usr/bin/agora
COPY --from=build --chown=65532:65532 /image/tmp /tmp
COPY --from=build --chown=65532:65532 /image/data /data
USER 65532:65532
# The relay creates its folder below the volume, so the mode of the volume does not matter.
ENV AGORA_DATA=/data/relay AGORA_ADDR=:8789
VOLUME /data
EXPOSE 8789
HEALTHCHECK --interval=30s --timeout=6s --start-period=60s CMD ["/usr/bin/agora", "health"]
ENTRYPOINT ["/usr/bin/agora"]
CMD ["serve"]
