// Everything that runs in browsers too. Programs for Node that need files import node.js, which has all of this too.
export * from './agora.js';
export { AgentError, Cancelled, Closed, Endless, Gone, NoProof, Plain, Unacceptable, Unproven } from './errors.js';
export { Call } from './call.js';
export { Client, newThread } from './client.js';
export { HUB_INTENT, hubOutput } from './origin.js';
export { NetworkCall } from './netcall.js';
export { Network } from './network.js';
export { signedForm, wasSealed } from './reading.js';
export { contentHash, verifyChain } from './chain.js';
export { verifyEvidence, verifyProof } from './proof.js';
export { Result } from './run.js';
