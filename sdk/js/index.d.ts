export * from './agora.js';
export * from './client.js';
export * from './chain.js';
export * from './proof.js';
