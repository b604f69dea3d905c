export * from './agora.js';
export * from './client.js';
export * from './chain.js';
export * from './network.js';
export * from './proof.js';
