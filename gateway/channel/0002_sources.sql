-- Which network sent a delivery to an inbox, see gateway.Core.Source. 0: the relay's own machine, or unknown, because
-- version 0.1.0 stored the delivery.
ALTER TABLE channel_request ADD COLUMN source BIGINT NOT NULL DEFAULT 0;
CREATE INDEX channel_request_finished ON channel_request (inbox, source) WHERE idle = 1;
